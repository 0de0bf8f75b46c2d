"""`make container-test`: the tests of tasks in containers, on the Docker engine that answers or one of our own (as root)."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from scripts.calling import ROOT
from scripts.compose_test.engine import docker_engine
from scripts.compose_test.images import have_debian
from triforge.errors import TriforgeError

_TESTS = "tests/unit/environments/test_harbor.py"


def main() -> int:
    """Return pytest's exit status, 1 where there is no engine."""
    folder, tell = ROOT / "var" / "compose-test", partial(print, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with docker_engine(folder / "engine", tell) as docker:
            given = {
                "DOCKER_HOST": "unix:///var/run/docker.sock",
                **docker.environment,
                "CONTAINER_TEST_IMAGE": have_debian(docker, folder, tell),
            }
            return subprocess.call([sys.executable, "-m", "pytest", _TESTS], env=given, cwd=ROOT)  # noqa: S603
    except TriforgeError as error:
        tell(error.detail)
        return 1


if __name__ == "__main__":
    sys.exit(main())
