"""`make conformance`, its part about agents: official clients and frameworks, unmodified, in sessions of ours.

    python -m scripts.agent_conformance [AGENT...]

Each program of `agents/` runs in `.venv-agents` with what `triforge agent run` gives an agent in its environment. The model calls
a tool and then answers; the program must say the answer, and both requests must be one lineage. `verifiers` are the environments of
`verifiers_host.py`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from scripts.agent_conformance.verifiers_host import hosted
from scripts.virtual_environments import ensure_files
from tests.service.session_services import Services, services

_HERE = Path(__file__).parent
_ANSWER = "A cup."
_LIMIT_S = 120.0
_CALLS = '<tool_call>\n{"name":"%s","arguments":{"%s":"%s"}}\n</tool_call>'
_LOOKS = _CALLS % ("look", "at", "fridge")
_SUBMITS = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {_ANSWER}"
# What the model says, where it is not a call of the tool `look` and then the answer.
_SAYS = {"mini_swe_agent": [_CALLS % ("bash", "command", run) for run in ("ls", _SUBMITS)]}


async def play(both: Services, python: Path, agent: Path, folder: Path) -> list[str]:
    """Run one program; returns what is wrong."""
    made = await both.begin()
    both.says(*_SAYS.get(agent.stem, (_LOOKS, _ANSWER)))
    given = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "OPENAI_BASE_URL": made.base_url, "OPENAI_API_KEY": made.key,
        "ANTHROPIC_BASE_URL": made.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": made.key,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        python, agent, env=given, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )  # fmt: skip
    try:
        async with asyncio.timeout(_LIMIT_S):
            printed = (await process.communicate())[0].decode(errors="replace")
    except TimeoutError:
        process.kill()
        return [f"it did not end within {_LIMIT_S:.0f} s"]
    parents = [turn.parent for turn in await both.turns(made)]
    wrong = [] if _ANSWER in printed else [f"it printed {printed[-1500:]}"]
    return wrong + ([] if parents == [None, "1.0"] else [f"its turns continue {parents}"])


async def main(names: list[str]) -> int:
    chosen = [
        agent for agent in sorted(_HERE.glob("agents/*.py")) if not names or agent.stem in names
    ]
    failed = 0
    for agent in chosen:
        python = ensure_files("agents", folder=_HERE)
        with tempfile.TemporaryDirectory() as folder:
            async with services(Path(folder)) as both:
                wrong = await play(both, python, agent, Path(folder))
        print(f"{agent.stem}: {'; '.join(wrong) or 'held'}", flush=True)
        failed += bool(wrong)
    if not names or "verifiers" in names:
        with tempfile.TemporaryDirectory() as folder:
            failed += len(await hosted(Path(folder)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
