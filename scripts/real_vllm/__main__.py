"""`make test-vllm`: the contract of engines and two steps of the closed loop against real, unmodified vLLM.

python -m scripts.real_vllm             everything
python -m scripts.real_vllm suite       the contract suite alone
python -m scripts.real_vllm loop        the closed loop alone
python -m scripts.real_vllm record      write the recordings in tests/contract/vllm anew
"""

from __future__ import annotations

import sys

from scripts.real_sglang.folders import untied
from scripts.real_sglang.trial import Kind, main
from scripts.real_vllm.record import record
from scripts.real_vllm.server import ensure, spec
from services.policy.engines.vllm import VLLMEngine

VLLM = Kind(
    name="vllm", about=__doc__, ensure=ensure, spec=spec, client=VLLMEngine, record=record,
    suite="tests/contract/engine/test_engine.py", prepared=untied,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(VLLM))
