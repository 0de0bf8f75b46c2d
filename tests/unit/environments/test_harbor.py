"""Harbor's task folders: the sandbox and containers play them, and only the verifier decides the reward."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from environments.harbor.containers import Containers
from environments.harbor.execution import RunLimits, Workspace
from environments.harbor.family import HarborFamily, PlayOptions, script_of
from environments.harbor.folder import HarborTask, laid_out, read_folder
from triforge.errors import InputError
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import MIB, Limits
from triforge.testing.check_environment import check_environment, require

FOLDERS = Path(__file__).parents[3] / "configs" / "pools" / "harbor"
DOCKERFILE = "environment/Dockerfile"

# The tests run the agent's program, which is how most tasks are verified, and the hardest to keep clean.
FILES = {
    "task.toml": '[verifier]\ntimeout_sec = 20\nenv = { RIGHT = "42" }\n',
    "instruction.md": "Write /app/answer.py, which prints the answer.",
    DOCKERFILE: "FROM python:3.11-slim\nWORKDIR /app\nENV COLOUR=red\nCOPY notes.txt /app/\n",
    "environment/notes.txt": "think\n",
    "tests/test.sh": 'out=$(python3 /app/answer.py)\n[ "$out" = "$RIGHT" ]\n'
    'echo "$((1 - $?))" > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "cp /solution/answer.py /app/\n",
    "solution/answer.py": "print(42)\n",
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
    "puts a program before the machine's": "printf '#!/bin/sh\\necho 42\\n' > /usr/local/bin/python3; chmod +x /usr/local/bin/python3",
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


IMAGE = os.environ.get("CONTAINER_TEST_IMAGE", "")
IN_CONTAINER = f"FROM {IMAGE}\nRUN mkdir /app && echo old > /app/old\nWORKDIR /app\nENV COLOUR=red\nCOPY notes.txt /app/\n"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(with_shell=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def containers() -> Containers:
    if not IMAGE:
        pytest.skip(
            "CONTAINER_TEST_IMAGE names no image with bash and python3 (make container-test)"
        )
    return Containers(os.environ["DOCKER_HOST"])


@pytest.fixture(params=["sandbox", "container"])
def work(request: pytest.FixtureRequest) -> Work:
    """The task where it is played."""
    if request.param == "sandbox":
        return Work(HarborFamily(request.getfixturevalue("sandbox")), task())
    family = HarborFamily(engine=request.getfixturevalue("containers"))
    return Work(family, task(**{DOCKERFILE: IN_CONTAINER}))


@dataclass(frozen=True)
class Work:
    """A family and a task of it."""

    family: HarborFamily
    given: HarborTask

    def space(self, **limits: Any) -> Workspace:
        return self.family.workspace(laid_out(self.given), RunLimits(**limits))

    def played(self, *scripts: str) -> float | None:
        options = PlayOptions(command_s=10, disk_mb=12)
        episode = self.family.begin(self.given, options, "", 0)
        for script in scripts:
            assert not episode.play(f"Here it is:\n```bash\n{script}\n```").done
        return episode.play("done").score


def task(**changed: str) -> HarborTask:
    """The task with other files; an empty one is left out."""
    files = {name: text for name, text in {**FILES, **changed}.items() if text}
    return HarborTask(name="answer", files=files)


def test_the_solution_earns_one_and_doing_nothing_nothing(work: Work) -> None:
    draft = work.family.validate(work.given.model_dump(mode="json"))
    assert (draft.instruction, draft.kind) == (
        "Write /app/answer.py, which prints the answer.",
        "answer",
    )
    solution = work.family.solution(work.given, PlayOptions())
    assert solution is not None
    assert work.played(*(one[8:-4] for one in solution[:-1])) == 1.0
    assert work.played() == 0.0


@pytest.mark.parametrize("script", TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_earns_nothing(script: str, work: Work) -> None:
    assert work.played(script) == 0.0


def test_files_stay_between_scripts_and_processes_do_not(work: Work) -> None:
    space = work.space(command_s=5)
    made = "cat notes.txt; echo $COLOUR; mkdir d; printf '\\xff\\x00' > d/b; chmod 500 d; ln -s d/b l; echo 'echo hi' > x; chmod 750 x; sleep 99 &"
    assert space.run(made).output == "think\nred\n"
    result = space.run(
        "pwd; od -An -tx1 l; stat -c %a d x; ./x; ls /tests; ps 2>/dev/null | grep -c sleep"
    )
    assert result.output.splitlines()[:5] == ["/app", " ff 00", "500", "750", "hi"]
    assert result.output.endswith("0\n")


def test_a_script_that_meets_a_limit_leaves_the_files_and_the_episode(work: Work) -> None:
    space = work.space(command_s=1, shown=100)
    assert space.run("echo kept > f; sleep 60").status is None
    result = space.run("cat f; yes | head -c 5000")
    assert result.output.startswith("kept\n")
    assert "bytes left out" in result.output
    assert len(result.output) < 200
    assert space.run("kill -9 -1; sleep 1").status != 0
    assert space.run("cat f").output == "kept\n"


def test_an_image_s_files_are_changed_and_taken_away_like_others(containers: Containers) -> None:
    work = Work(HarborFamily(engine=containers), task(**{DOCKERFILE: IN_CONTAINER}))
    space = work.space()
    assert space.run("cat old; rm -r old; mkdir old; rm notes.txt; ln -s old notes.txt").status == 0
    assert space.run("ls -F").output == "notes.txt@\nold/\n"


def test_limits_of_a_container_are_the_task_s_and_it_has_no_network(containers: Containers) -> None:
    limits = "[environment]\ncpus = 0.5\nmemory_mb = 128\npids = 12\ndocker_image = '"
    given = task(**{DOCKERFILE: "", "task.toml": f"{limits}{IMAGE}'"})
    space = Work(HarborFamily(engine=containers), given).space(cpus=1, disk_mb=1)
    seen = space.run("ls /sys/class/net; for i in $(seq 20); do sleep 1 & done; wait")
    assert seen.output.startswith("lo\n")
    assert "Resource temporarily unavailable" in seen.output
    taken = "x = bytearray(2**20 * 300)"
    assert space.run(f"python3 -c '{taken}'; echo $?").output.strip().endswith("137")
    quota = "cd /sys/fs/cgroup; cat cpu.max cpu/cpu.cfs_quota_us 2>/dev/null"  # version 2, else 1
    assert space.run(quota).output.split()[0] == "50000"


def test_a_container_that_prints_too_much_or_takes_too_long_ends(containers: Containers) -> None:
    result = containers.run(IMAGE, 1, "while True: print('x' * 999)", "", Limits(output_bytes=MIB))
    assert (result.ended, result.exit_code) == ("output", None)
    slow = containers.run(IMAGE, 1, "import time; time.sleep(99)", "", Limits(wall_s=1))
    assert (slow.ended, slow.exit_code) == ("wall_time", None)


def test_a_container_serves_one_run_alone(containers: Containers) -> None:
    write = "import os; print(os.path.exists('/x')); open('/x', 'w')"
    for _ in range(3):
        assert containers.run(IMAGE, 1, write).stdout == "False\n"


def test_a_missing_image_and_a_failing_build_are_refused(containers: Containers) -> None:
    family = HarborFamily(engine=containers)
    image = "[environment]\ndocker_image = 'no/such'"
    with pytest.raises(InputError, match="has no image 'no/such'"):
        family.check(task(**{DOCKERFILE: "", "task.toml": image}))
    with pytest.raises(InputError, match=r"(?s)the image is not built: .*exit 3"):
        family.check(task(**{DOCKERFILE: f"FROM {IMAGE}\nRUN exit 3"}))
    with pytest.raises(InputError, match="work lies in /var/www, among programs"):
        family.check(task(**{DOCKERFILE: f"{IN_CONTAINER}WORKDIR /var/www\n"}))


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("environment/docker-compose.yaml", "services: {}", "asks for environment/docker-compose.yaml, which"),
        ("task.toml", "[environment]\ngpus = 1\nhealthcheck = {command = 'x'}", ".environment. gpus, .environment. healthcheck"),
        ("task.toml", "[[steps]]\nname = 'one'", "asks for steps"),
        ("task.toml", "[verifier]\nenvironment_mode = 'separate'", "environment_mode"),
        ("task.toml", "[verifier.env]\nKEY = '${OPENAI_API_KEY}'", "a variable of the host"),
        ("task.toml", "no toml", "task.toml: "),
        ("tests/test.sh", "", "the folder has no tests/test.sh"),
        ("../out", "x", "no path below the folder"),
    ],
)  # fmt: skip
def test_what_is_not_played_is_refused(file: str, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        laid_out(task(**{file: text}))


@pytest.mark.parametrize(
    ("file", "text", "needs"),
    [
        (DOCKERFILE, "FROM python:3.11\nRUN apt-get install -y gcc", "the line 'RUN apt-get install -y gcc'"),
        (DOCKERFILE, "FROM nvidia/cuda:12", "the line 'FROM nvidia/cuda:12'"),
        (DOCKERFILE, "FROM debian\nCOPY notes.txt /etc/x", "files in /etc/x"),
        (DOCKERFILE, "FROM debian\nCOPY absent /app/", "the line 'COPY absent /app/'"),
        (DOCKERFILE, "FROM debian\nCOPY ../task.toml /app/", "the line 'COPY ../task.toml"),
        (DOCKERFILE, "FROM debian\nCOPY --chown=me notes.txt /app/", "the line 'COPY --chown"),
        (DOCKERFILE, 'FROM debian\nCOPY ["notes.txt", "/app/"]', "the line 'COPY ["),
        (DOCKERFILE, "FROM debian\nENV A=$HOME", "the line 'ENV A=$HOME'"),
        ("task.toml", "[environment]\ndocker_image = 'me/mine'", "the image 'me/mine'"),
        ("task.toml", "[environment]\nworkdir = '/usr/src'", "files in /usr/src"),
    ],
)  # fmt: skip
def test_what_needs_a_container_is_refused_where_none_may_be_had(
    file: str, text: str, needs: str
) -> None:
    layout = laid_out(task(**{file: text}))
    assert needs in layout.needs
    assert {entry[0] for entry in layout.context} == {"Dockerfile", "notes.txt"}
    with pytest.raises(InputError, match=r"needs a container for .*; set TRIFORGE_CONTAINERS"):
        HarborFamily().check(task(**{file: text}))


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
        '# a comment\nFROM docker.io/library/debian:12-slim\nENV A=1 B="two words"\n'
        'WORKDIR /app\nWORKDIR sub\nCOPY data \\\n  ./d/\nCOPY notes.txt as.txt\nCOPY notes.txt /srv/\nCMD ["bash"]\n'
    )
    layout = laid_out(task(**{DOCKERFILE: dockerfile, "environment/data/x": "x"}))
    assert (layout.needs, layout.workdir) == ("", "/app/sub")
    assert layout.env == {"A": "1", "B": "two words"}
    assert {path for path, *_ in layout.tree} == {
        "/app/sub/d/x", "/app/sub/as.txt", "/srv/notes.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("response", "script"),
    [
        ("```bash\nls\n```", "ls"),
        ("a\n```sh\nls\n```\nb\n```\npwd\n```", "pwd"),
        ("```python\nprint()\n```", None),
        ("```python title\nprint()\n```\n```bash\nls\n```", "ls"),
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
