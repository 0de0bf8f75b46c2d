"""`triforge agent run`: commands of any kind play a run, and their rewards are those that they gave."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from tests.service.test_policy_http import serving
from tests.service.test_session_groups import RUN, Run, run
from triforge.cli.agent import Agents, verified
from triforge.config import Settings
from triforge.errors import ConfigError
from triforge.store.tables import SessionRow
from triforge.types import RunState, RunStatus, SessionReward, Task

__all__ = ["run"]
TYPES = Path(__file__).parents[1] / "contract" / "types"
STATE = RunState.model_validate_json((TYPES / "RunState.json").read_text())
TASK = Task.model_validate_json((TYPES / "Task.json").read_text())
# An agent with nothing but Python: asks once, and gives its own reward.
ASKS = """
import json, os, urllib.request as web
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": os.environ["TRIFORGE_INSTRUCTION"]}]})
def post(url, text):
    key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    return json.load(web.urlopen(web.Request(url, text.encode(), key)))
post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
assert json.load(open(os.environ["TRIFORGE_TASK"]))["instruction"] == os.environ["TRIFORGE_INSTRUCTION"]
"""


class Trainer:
    """A trainer whose only run has a status that tests set."""

    def __init__(self) -> None:
        self.status: RunStatus = "running"
        self.stopped: list[str] = []

    @contextlib.asynccontextmanager
    async def of(self, run: Run) -> AsyncIterator[Settings]:
        """Serve the API; yield the settings of a client."""
        app = FastAPI()

        @app.get("/v1/runs/{run_id}")
        def show(run_id: str) -> RunState:
            return STATE.model_copy(update={"id": run_id, "status": self.status})

        @app.post("/v1/runs", status_code=201)
        def submit() -> RunState:
            return show(RUN)

        @app.post("/v1/runs/{run_id}/stop")
        def stop(run_id: str) -> RunState:
            self.stopped.append(run_id)
            return show(run_id)

        async with serving(app) as (url, _):
            yield Settings(trainer_url=url, env_adapter_url=run.both.env_url)

    async def plays(
        self,
        run: Run,
        code: list[str],
        parallel: int,
        *,
        keep: bool = False,
        progress_s: float = 10.0,
        **group: Any,
    ) -> RunState:
        """Let agents play a group; return the run as it ended."""
        async with self.of(run) as settings:
            agents = Agents(settings, code, parallel, keep=keep, progress_s=progress_s)
            serve = asyncio.create_task(agents.serve("", RUN, "", {}))
            await asyncio.wait_for(run.play(run.group(retries=0, **group)), 30)
            self.status = "finished"
            return await asyncio.wait_for(serve, 10)


# What each copy does in the end, and what becomes of it: success and score, or the reason why nothing was measured.
ENDINGS: list[tuple[str, object]] = [
    ("pass", (1, None)),
    ("raise SystemExit(1)", (-1, None)),
    ("raise KeyError('rewrad')", (-1, None)),
    ("write('0.25')", (None, 0.25)),
    ('write(\'{"success": true, "score": 3}\')', (1, 3.0)),
    ('post(session + "/reward", \'{"score": 0.5, "end": false}\')', (None, 0.5)),
    ("sys.stderr.write('no key\\n'); sys.exit(3)", "the agent ended with 3: no key"),
    ("write('good')", "expected a number or the JSON of a reward"),
    ("write('1e308')", "expected a number from -1e+12 to 1e+12: divide larger ones by a constant"),
    ("write('NaN')", "NaN is no JSON number"),
]
ENDS = """
import sys
session = os.environ["TRIFORGE_SESSION_URL"]
def write(text):
    open(os.environ["TRIFORGE_REWARD"], "w").write(text)
for number in range(100):  # every copy takes another one
    try:
        os.close(os.open(os.path.join(sys.argv[1], str(number)), os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        pass
open(os.path.join(sys.argv[1], session.rpartition("/")[2]), "w").write(str(number))
exec(sys.argv[2 + number])
"""


async def test_the_reward_is_posted_written_or_the_exit_status_and_else_nothing_is_measured(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.both.says("left")
    (folder := tmp_path / "taken").mkdir()
    code = [sys.executable, "-c", ASKS + ENDS, str(folder), *(code for code, _ in ENDINGS), ""]
    ended = await Trainer().plays(run, code, 3, rollouts=len(ENDINGS))
    assert ended.status == "finished"
    with run.both.database.read() as session:
        ids = {row.index: row.id for row in session.scalars(select(SessionRow))}
    for trajectory in (await run.played()).trajectories:
        number = int((folder / ids[trajectory.index]).read_text())
        outcome, expected = trajectory.outcome, ENDINGS[number][1]
        if isinstance(expected, str):
            assert outcome.error is not None
            assert expected in outcome.error.detail
        else:
            assert (outcome.value, outcome.score) == expected
            assert [step.response for step in trajectory.steps] == ["left"]
    printed = capsys.readouterr().out
    assert printed.count("the agent raised, which counts as a failure: KeyError: 'rewrad'") == 1
    assert printed.count("counts as a failure") == 1


# An agent that stays: it counts its sessions, says of the third that it cannot say, and breaks in the fourth.
STAYS = """
import sys
for count, line in enumerate(sys.stdin):
    os.environ.update(json.loads(line))
    ask()
    if count == 3:
        sys.exit("out of paper")
    print(json.dumps({"error": "no verdict"} if count == 2 else count), flush=True)
"""
ENDED, VERDICT = (
    "the agent ended with 1 before it answered: out of paper",
    "the agent reports: no verdict",
)
CHATS = STAYS.replace("    ask()", "    ask()\n    if count == 1: print('Warming up')")
NO_REWARD = "TRIFORGE_REWARD: given b'Warming up\\n', expected a number or the JSON of a reward (not JSON: Expecting value (character 0))"


@pytest.mark.parametrize(
    ("agent", "scores", "reasons"),
    [(STAYS, [0.0, 0.0, 1.0], [ENDED, VERDICT]), (CHATS, [0.0] * 3, [NO_REWARD] * 2)],
    ids=["breaks", "says more than its answers"],
)
async def test_a_copy_that_is_kept_plays_session_after_session_and_is_started_again(
    run: Run, agent: str, scores: list[float], reasons: list[str]
) -> None:
    run.both.says("left")
    asks, _, post = ASKS.partition("body =")
    body = "".join(f"    {line}\n" for line in f"body ={post}".strip().splitlines())
    code = [sys.executable, "-c", f"{asks}def ask():\n{body}{agent}"]
    await Trainer().plays(run, code, 1, keep=True, rollouts=5)
    played = (await run.played()).trajectories
    assert sorted(t.outcome.score for t in played if t.outcome.score is not None) == scores
    unmeasured = [t.outcome.error.detail for t in played if t.outcome.error]
    assert sorted(detail.partition(": ")[2] for detail in unmeasured) == reasons


async def test_an_agent_that_breaks_before_it_asks_is_shown_with_its_error_a_few_times(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code = [sys.executable, "-c", "import nosuch_agent"]
    await Trainer().plays(run, code, 3, rollouts=5)
    played = (await run.played()).trajectories
    assert not any(t.measured for t in played)
    details = [t.outcome.error.detail for t in played if t.outcome.error]
    assert all(detail.count("session ") == 1 for detail in details), details
    assert all("No module named 'nosuch_agent'" in detail for detail in details)
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        printed.count("the agent ended with 1: ModuleNotFoundError: No module named 'nosuch_agent'")
        == 3
    )
    assert printed.count("has sampled nothing") == 3
    assert printed.count('File "<string>", line 1, in <module>') == 1
    assert printed.count("further sessions that end like this are not shown") == 1


async def test_progress_is_shown_now_and_then(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.both.says("left")
    names = ("run-1-00003-train-0000", "run-1-00003-greedy-0001")
    for name in names:
        await Trainer().plays(
            run, [sys.executable, "-c", ASKS], 1, progress_s=0.0, name=name, rollouts=2
        )
    printed = capsys.readouterr().out
    assert "a step has 128 sessions, an evaluation at most 128" in printed
    assert "step 3: sessions 2 of 128" in printed
    assert "step 3, evaluation: sessions 2 of 128" in printed


@pytest.mark.parametrize(("answer", "score"), [("4", 1.0), ("5", 0.0)])
async def test_the_tasks_own_verifier_grades_a_final_answer(answer: str, score: float) -> None:
    params = {"prompt": "2 + 2?", "columns": {"answer": "4"}}
    task = TASK.model_copy(update={"family": "prompts", "instruction": "2 + 2?", "params": params})
    options = {"reward": "environments.prompts.rewards:exact", "success_at": 1.0}
    assert await verified(task, options, answer) == SessionReward(score=score, success=score == 1.0)


async def test_a_family_that_verifies_no_answer_alone_ends_the_run(run: Run) -> None:
    trainer = Trainer()
    run.both.says("left")
    playing = run.play(run.group(rollouts=1))
    async with trainer.of(run) as settings:
        agents = Agents(settings, [sys.executable, "-c", ASKS + "print('left')"], 1, verify=True)
        with pytest.raises(ConfigError, match="given tasks of the family household, expected"):
            await asyncio.wait_for(agents.serve("pool", "", "", {}), 30)
    assert trainer.stopped == [RUN]
    playing.cancel()


async def test_who_interrupts_gives_the_places_back(run: Run, tmp_path: Path) -> None:
    trainer, playing = Trainer(), run.play(run.group())
    (folder := tmp_path / "begun").mkdir()
    begins = "import os, sys, time; open(os.path.join(sys.argv[1], str(os.getpid())), 'w'); time.sleep(60)"
    async with trainer.of(run) as settings:
        agents = Agents(settings, [sys.executable, "-c", begins, str(folder)], parallel=2)
        serve = asyncio.create_task(agents.serve("", RUN, "", {}))
        async with asyncio.timeout(30):
            while len([*folder.iterdir()]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        serve.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serve, 20)
    with run.both.database.read() as session:
        rows = [(row.status, row.reason) for row in session.scalars(select(SessionRow))]
    assert rows == [("failed", "its agent was interrupted")] * 2
    await asyncio.gather(run.begin(), run.begin())
    playing.cancel()
