"""Harbor's task folders: what the sandbox can play, and that a reward is the verifier's and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.harbor.execution import RunLimits, Workspace
from environments.harbor.family import HarborEpisode, HarborFamily, PlayOptions, script_of
from environments.harbor.folder import HarborTask, laid_out, read_folder
from triforge.errors import InputError
from triforge.sandbox.client import Sandbox
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params

FOLDERS = Path(__file__).parents[3] / "configs" / "pools" / "harbor"
DOCKERFILE = "environment/Dockerfile"

# The tests run the agent's program, which is how most tasks are verified, and the hardest to keep clean.
TASK: Params = {
    "name": "answer",
    "files": {
        "task.toml": '[verifier]\ntimeout_sec = 20\nenv = { RIGHT = "42" }\n',
        "instruction.md": "Write /app/answer.py, which prints the answer.",
        DOCKERFILE: "FROM python:3.11-slim\nWORKDIR /app\nENV COLOUR=red\nCOPY notes.txt /app/\n",
        "environment/notes.txt": "think\n",
        "tests/test.sh": 'said=$(python3 /app/answer.py)\n[ "$said" = "$RIGHT" ]\n'
        'echo "$((1 - $?))" > /logs/verifier/reward.txt\n',
        "solution/solve.sh": "cp /solution/answer.py /app/\n",
        "solution/answer.py": "print(42)\n",
    },
}
FORGE = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
CHEATS = "open('/logs/verifier/reward.txt', 'w').write('1')"


def program(does: str) -> str:
    """A script that leaves a program which does this when the tests run it."""
    return f"cat > /app/answer.py <<'EOF'\nimport os\n{does}\nEOF"


TAMPERING = {
    "writes the reward": FORGE,
    "writes the reward that counts first": "mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "replaces the tests": f"mkdir -p /tests; echo '{FORGE}' > /tests/test.sh",
    "leaves a process that waits for the tests": f"(while sleep 0.01; do {FORGE}; done) >/dev/null 2>&1 &",
    "leaves programs of its own on the path": "mkdir -p /usr/local/bin ~/bin /app/bin; "
    "for f in ~/bin /app/bin /app; do printf '#!/bin/sh\\necho 42\\n' > $f/python3; chmod +x $f/python3; done; "
    "echo PATH=/app/bin:$PATH | tee ~/.bashrc ~/.profile > /etc/environment",
    "preloads a library": "echo /app/evil.so > /etc/ld.so.preload; echo x > /app/evil.so",
    "puts the verifier's folder in its own place": f"cd /; rm -rf /app; ln -s /logs/verifier /app; {FORGE}",
    "leaves a link for the tests to write through": "rm -rf /logs; ln -s /app /logs; mkdir -p /app/verifier; echo 1 > /app/verifier/reward.txt",
    "has Python start with its module": 'd=~/.local/lib/python3.11/site-packages; mkdir -p $d; '
    f'echo "{CHEATS}; print(42)" | tee $d/usercustomize.py $d/sitecustomize.py > /app/sitecustomize.py',
    "looks for the solution": "bash $(find / -xdev -name solve.sh 2>/dev/null | head -1); cp /solution/* /tests/* /app/",
    "fills the disk": "head -c 10M /dev/urandom > /app/full; true",
    "has its program end the tests": f"echo \"import os; {CHEATS}; os.kill(os.getppid(), 9); os.kill(-1, 9)\" > /app/answer.py",
    "has its program write the other reward": program("open('/logs/verifier/reward.json', 'w').write('1')"),
    "has its program write the reward and close the file": program(f"{CHEATS}; os.chmod('/logs/verifier/reward.txt', 0o444)"),
    "has its program write the reward and close the folder": program(
        "open('/logs/verifier/reward.json', 'w').write('1'); os.chmod('/logs/verifier', 0o555)"
    ),
    "has its program change the running tests": program(f"open('/tests/test.sh', 'a').write('{FORGE}\\n')"),
    "has its program put the folder of the reward aside": program(
        f"os.rename('/logs', '/old'); os.makedirs('/logs/verifier'); {CHEATS}; os.chmod('/logs/verifier/reward.txt', 0o444)"
    ),
    "has its program wait for the end of the tests": program(
        f"if not os.fork():\n    os.close(1)\n    while True:\n        {CHEATS}"
    ),
    "has its program answer in the sandbox's place": "echo \"print('no'); import json; [open(f'/proc/1/fd/{n}', 'w').write("
    "json.dumps({'status': 0, 'output': '', 'read': {'/logs/verifier/reward.txt': '1'}})) for n in (1, 3, 4)]\" > /app/answer.py",
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(with_shell=True)
    yield made
    made.close()


def task(**changed: str) -> HarborTask:
    """The task with other files; an empty one is left out."""
    files = {**TASK["files"], **changed}  # type: ignore[dict-item]
    return HarborTask(name="answer", files={k: v for k, v in files.items() if v})


def played(sandbox: Sandbox, *scripts: str) -> float | None:
    episode = HarborEpisode(laid_out(task()), PlayOptions(command_s=5, disk_mb=2), sandbox)
    for script in scripts:
        assert not episode.play(f"Here it is:\n```bash\n{script}\n```").done
    return episode.play("done").score


def test_the_solution_earns_one_and_doing_nothing_nothing(sandbox: Sandbox) -> None:
    family = HarborFamily(sandbox)
    draft = family.validate(TASK)
    assert (draft.instruction, draft.kind) == (
        "Write /app/answer.py, which prints the answer.",
        "answer",
    )
    solution = family.solution(task(), PlayOptions())
    assert solution is not None
    assert played(sandbox, *(said[8:-4] for said in solution[:-1])) == 1.0
    assert played(sandbox) == 0.0


@pytest.mark.parametrize("script", TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_earns_nothing(script: str, sandbox: Sandbox) -> None:
    assert played(sandbox, script) == 0.0


def test_files_stay_between_scripts_and_processes_do_not(sandbox: Sandbox) -> None:
    work = Workspace(laid_out(task()), RunLimits(command_s=5), sandbox)
    made = "cat notes.txt; echo $COLOUR; mkdir d; printf '\\xff\\x00' > d/b; chmod 500 d; ln -s d/b l; echo 'echo hi' > x; chmod 750 x; sleep 99 &"
    assert work.run(made).output == "think\nred\n"
    said = work.run(
        "pwd; od -An -tx1 l; stat -c %a d x; ./x; ls /tests; ps 2>/dev/null | grep -c sleep"
    )
    assert said.output.splitlines()[:5] == ["/app", " ff 00", "500", "750", "hi"]
    assert said.output.endswith("0\n")


def test_a_script_that_meets_a_limit_leaves_the_files_and_the_episode(sandbox: Sandbox) -> None:
    work = Workspace(laid_out(task()), RunLimits(command_s=0.3, shown=100), sandbox)
    assert work.run("echo kept > f; sleep 60").status is None
    said = work.run("cat f; yes | head -c 5000")
    assert said.output.startswith("kept\n")
    assert "bytes left out" in said.output
    assert len(said.output) < 200
    assert work.run("kill -9 -1; sleep 1").status != 0
    assert work.run("cat f").output == "kept\n"


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        (DOCKERFILE, "FROM python:3.11\nRUN apt-get install -y gcc", "needs a container for the line 'RUN apt-get"),
        (DOCKERFILE, "FROM nvidia/cuda:12", "needs a container for the line 'FROM nvidia"),
        (DOCKERFILE, "FROM debian\nCOPY notes.txt /etc/x", "needs a container for files in /etc/x"),
        (DOCKERFILE, "FROM debian\nCOPY absent /app/", "copies 'absent', and there is no such file"),
        (DOCKERFILE, "FROM debian\nCOPY ../task.toml /app/", "no such file"),
        ("environment/docker-compose.yaml", "services: {}", "container for environment/docker-compose.yaml"),
        ("task.toml", "[environment]\ngpus = 1\nhealthcheck = {command = 'x'}", "gpus, .environment. healthcheck"),
        ("task.toml", "[environment]\ndocker_image = 'me/mine'", "docker_image = 'me/mine'"),
        ("task.toml", "[[steps]]\nname = 'one'", "container for steps"),
        ("task.toml", "[verifier]\nenvironment_mode = 'separate'", "environment_mode"),
        ("task.toml", "[verifier.env]\nKEY = '${OPENAI_API_KEY}'", "a variable of the host"),
        ("task.toml", "[environment]\nworkdir = '/usr/src'", "files in /usr/src"),
        ("task.toml", "no toml", "task.toml: "),
        ("tests/test.sh", "", "the folder has no tests/test.sh"),
        ("../out", "x", "no path below the folder"),
    ],
)  # fmt: skip
def test_what_the_sandbox_cannot_give_is_refused(file: str, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        laid_out(task(**{file: text}))


def test_a_task_that_its_solution_does_not_win_is_refused_and_one_that_is_won_already(
    sandbox: Sandbox,
) -> None:
    family = HarborFamily(sandbox)
    with pytest.raises(InputError, match=r"its own solution earns 0, .*uvx: command not found"):
        family.check(task(**{"tests/test.sh": "uvx pytest && echo 1 > /logs/verifier/reward.txt"}))
    with pytest.raises(InputError, match="reward doing nothing with 1"):
        family.check(
            task(**{"tests/test.sh": """echo '{"a": 1, "b": 1}' > /logs/verifier/reward.json"""})
        )


def test_a_dockerfile_lays_out_files_as_docker_does() -> None:
    dockerfile = (
        '# a comment\nFROM docker.io/library/debian:12-slim\nENV A=1 B="two words"\nENV C three\n'
        'WORKDIR /app\nWORKDIR sub\nCOPY --chown=me data \\\n  ./d/\nCOPY ["notes.txt", "as.txt"]\nCOPY data/x notes.txt /srv/\nCMD ["bash"]\n'
    )
    layout = laid_out(task(**{DOCKERFILE: dockerfile, "environment/data/x": "x"}))
    assert layout.workdir == "/app/sub"
    assert layout.env == {"A": "1", "B": "two words", "C": "three"}
    assert {path for path, *_ in layout.tree} == {
        "/app/sub/d/x", "/app/sub/as.txt", "/srv/x", "/srv/notes.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("response", "script"),
    [
        ("```bash\nls\n```", "ls"),
        ("a\n```sh\nls\n```\nb\n```\npwd\n```", "pwd"),
        ("```python\nprint()\n```", None),
        ("```bash\nls", None),
        ("ls", None),
        ("```bash\nls\n```\nthen\n```bash\npw", "ls"),
        ("`Done`.", "done"),
        ("", None),
    ],
)
def test_what_of_a_response_is_the_script(response: str, script: str | None) -> None:
    assert script_of(response, "block") == script


async def test_a_shipped_folder_keeps_the_contract(sandbox: Sandbox) -> None:
    tasks = [read_folder(FOLDERS / "mend-mean")]
    require(await check_environment(HarborFamily(sandbox), tasks=tasks, options={"horizon": 2}))
