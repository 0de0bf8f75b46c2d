"""Write the packages of this interpreter's environment as constraints.txt, and from it the lock files, with hashes: requirements-*.txt.

Usage: python scripts/lock.py    (needs uv, which computes the hashes: pip install uv)
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).parents[1]
DEMO = ("trainer", "local-engine", "smollm2", "gymnasium")
TEST = (
    *DEMO, "experiments", "lora", "vision", "tensorboard", "wandb", "reasoning-gym", "rlve", "openenv", "mcp", "miniwob", "postgres",
    "otel", "dev",
)  # fmt: skip
SERVICES = ("postgres",)  # what the images of the services install
IMAGES = (*SERVICES, "trainer", "local-engine", "lora", "vision", "smollm2")
HEADER = """\
# Exact versions of everything that `make setup` installs; `make lock` writes this file. To move a pin: install the
# version you want into .venv, run the tests, `make lock`. No index hosts and no local parts (+cpu) stand here: which
# build of torch is installed is the user's choice.
"""
LOCKED = """\
# Written by `make lock`: what {} on Linux, pinned by constraints.txt, with the hashes of all its files in the
# Python Package Index. Without torch and what only its CUDA build needs: which build of torch is installed is the user's choice.
"""
WITH_TORCH = "# With torch. The images of the services leave out what follows.\n"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NOT_PINNED = {"triforge", "pip", "setuptools", "wheel", "uv"}
OF_TORCH = re.compile(r"(torch|triton|nvidia-\S+|cuda-\S+)==")


def pins() -> list[str]:
    """Return the installed distributions as `name==version`, sorted, without local version parts."""
    found = {
        dist.metadata["Name"]: dist.version.partition("+")[0] for dist in metadata.distributions()
    }
    names = sorted((n for n in found if n.lower() not in NOT_PINNED), key=str.lower)
    return [f"{name}=={found[name]}" for name in names]


def locked(extras: tuple[str, ...]) -> list[str]:
    """Return what the project needs with these extras: a pin and its hashes each, as lines of a requirements file."""
    chosen = [word for extra in extras for word in ("--extra", extra)]
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        sys.exit("lock: uv is not installed; expected it next to this interpreter or on PATH: pip install uv")  # fmt: skip
    command = [
        uv, "pip", "compile", "pyproject.toml", "--quiet", "--universal", "--python-version", "3.11", "--constraint", "constraints.txt",
        "--generate-hashes", "--no-header", "--no-annotate", *chosen,
    ]  # fmt: skip
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if text.returncode:
        sys.exit(f"lock: uv ended with {text.returncode}:\n{text.stderr}")
    blocks = re.findall(r"^\S.*\n(?: .*\n)*", text.stdout, re.MULTILINE)
    return [block for block in blocks if not OF_TORCH.match(block) and not foreign(block)]


def foreign(block: str) -> bool:
    """Whether no Python on Linux asks for a package."""
    _, _, marker = block.partition("\n")[0].rstrip(" \\").partition(" ; ")
    versions = [{"python_version": v, "python_full_version": f"{v}.0"} for v in PYTHONS]
    return bool(marker) and not any(Marker(marker).evaluate(dict(v)) for v in versions)


def write(name: str, user: str, *parts: str) -> None:
    text = LOCKED.format(user) + "".join(parts)
    (ROOT / f"requirements-{name}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"lock: requirements-{name}.txt, {len(re.findall('^[a-z].*==', text, re.M))} packages\n")  # fmt: skip


def main() -> None:
    lines = pins()
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    demo, test, services, images = map(locked, (DEMO, TEST, SERVICES, IMAGES))
    write("demo", "`make demo` installs", *demo)
    write("test", "`make setup` installs", "-r requirements-demo.txt\n", *(b for b in test if b not in demo))  # fmt: skip
    write("images", "the images install", *services, WITH_TORCH, *(b for b in images if b not in services))  # fmt: skip


if __name__ == "__main__":
    main()
