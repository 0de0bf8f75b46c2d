"""Record what SGLang's own parsers of calls read in the cases of `tests/call_cases.py`; run it where SGLang is installed.

python scripts/real_sglang/record_calls.py
"""

from __future__ import annotations

import json
import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "contract" / "sglang_calls.json"


def main() -> None:
    """Write the golden file."""
    sys.path.insert(0, str(ROOT))
    from scripts.real_sglang import launch_cpu  # noqa: F401, PLC0415 - SGLang is imported without a GPU

    # isort: split
    from sglang.srt.entrypoints.openai.protocol import Tool  # noqa: PLC0415
    from sglang.srt.function_call.function_call_parser import FunctionCallParser  # noqa: PLC0415

    from tests.call_cases import CASES, TOOLS, Case  # noqa: PLC0415

    logging.disable()
    tools = [
        Tool(type="function", function={"name": name, "parameters": schema})
        for name, schema in TOOLS.items()
    ]

    def read(case: Case) -> dict[str, Any]:
        try:
            text, items = FunctionCallParser(tools, case.parser).parse_non_stream(case.answer)
            calls = [[item.name, json.loads(item.parameters)] for item in items]
        except Exception as error:  # noqa: BLE001 - whatever it raises is recorded
            return {"error": type(error).__name__}
        return {"text": text, "calls": calls}

    read_by = {
        form: {name: read(case) for name, case in cases.items()} for form, cases in CASES.items()
    }
    record = {"sglang": version("sglang"), "read": read_by}
    GOLDEN.write_text(json.dumps(record, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
