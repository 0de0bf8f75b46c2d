"""`make test-sglang`: the engine contract and two steps of the closed loop against real, unmodified SGLang.

python -m scripts.real_sglang             everything
python -m scripts.real_sglang suite       the contract suite alone
python -m scripts.real_sglang loop        the closed loop alone
python -m scripts.real_sglang record      write the recordings in tests/contract/sglang anew
"""

from __future__ import annotations

import sys

from scripts.real_sglang.install import ensure
from scripts.real_sglang.record import record
from scripts.real_sglang.server import spec
from scripts.real_sglang.trial import Kind, main
from services.policy.engines.sglang import SGLangEngine

SGLANG = Kind(
    name="sglang", about=__doc__, ensure=ensure, spec=spec, client=SGLangEngine, record=record, suite="tests/contract/engine"
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(SGLANG))
