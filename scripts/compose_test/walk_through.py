"""The lines of docs/train.md#over-rest, run against the stack as docs/operate.md says: they must make a pool, start a run, and see it end."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scripts.calling import ROOT

POOL = "kitchen"  # what the lines make; $RUN is the run
_UNPUBLISHED = (":8001/", ":8002/")  # APIs that compose keeps to itself
_HEAD = """set -euo pipefail
curl() { command curl --fail-with-body -H "Authorization: Bearer $TRIFORGE_KEY" "$@"; }
"""


def by_hand(ports: Mapping[str, int]) -> str:
    """Return a bash script of the first lines of the section "By hand": those that ask published APIs. Ends with the run's id.

    Args:
        ports: where the APIs `pools` and `runs` are published.
    """
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    section = page.partition("\n## Over REST\n")[2]
    block = re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0]
    asked = [part for part in block.split("\n\n") if not any(api in part for api in _UNPUBLISHED)]
    text = "\n\n".join(asked)
    for api, port in (("pools", 8003), ("runs", 8004)):
        text = text.replace(f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{ports[api]}/")
    return f'{_HEAD}{text}\nprintf "\\n%s\\n" "$RUN"\n'
