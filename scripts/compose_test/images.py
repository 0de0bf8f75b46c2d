"""The images that the stack stands on, and the stack's own.

Where the public base images cannot be pulled, they are made from Debian's packages, under the public names
(tests/compose/images). Containers that were built so have no way to a package index either: wheels go with them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

import yaml

from scripts.calling import ROOT, Tell, attempt, call
from scripts.compose_test.engine import Docker
from triforge.errors import UnavailableError

STAND_INS = ROOT / "tests" / "compose" / "images"
WHEELS = ROOT / "deploy" / "wheels"
_DEBIAN = "triforge-test/debian:bookworm"
_PACKAGES = "bubblewrap,ca-certificates,postgresql,prometheus,python3,python3-venv,redis-server"
_PULL_S, _MAKE_S, _BUILD_S = 300.0, 1800.0, 3600.0


def base_images() -> dict[str, str]:
    """Public names that the stack begins with, and the stand-in's file for each."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    named = {name: str(services[name]["image"]) for name in ("valkey", "postgres", "prometheus")}
    python = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert python is not None
    return {python[1]: "python"} | {image: name for name, image in named.items()}


def have_base_images(docker: Docker, folder: Path, tell: Tell) -> bool:
    """Pull what is missing, or make it; returns whether there are stand-ins of our own among them."""
    needed = dict(base_images())
    if not docker.has(_DEBIAN):
        needed = {image: name for image, name in needed.items() if not _pulled(docker, image, tell)}
    if not needed:
        return False
    have_debian(docker, folder, tell)
    for image, name in needed.items():
        tell(f"making a stand-in for {image}")
        file = STAND_INS / f"{name}.Dockerfile"
        docker("build", "--quiet", "-t", image, "-f", str(file), str(STAND_INS), timeout_s=_MAKE_S)
    return True


def _pulled(docker: Docker, image: str, tell: Tell) -> bool:
    """Whether the engine has the public image, now or from before."""
    if docker.has(image):
        return True
    command = ["docker", "pull", "--quiet", image]
    done = attempt(command, environment=docker.environment, timeout_s=_PULL_S)
    tell(f"{image}: {'cannot be pulled' if done.returncode else 'pulled'}")
    return not done.returncode


def have_debian(docker: Docker, folder: Path, tell: Tell) -> str:
    """Return the image of a minimal Debian with the packages that all stand-ins need, made where it is missing."""
    if not docker.has(_DEBIAN):
        docker("import", str(fetch_debian(folder, tell)), _DEBIAN, timeout_s=_MAKE_S)
    return _DEBIAN


def fetch_debian(folder: Path, tell: Tell) -> Path:
    """Return the archive that stand-ins are made of; one that is in the folder is kept.

    Raises:
        UnavailableError: debootstrap is not installed or has failed.
    """
    archive = folder / "debian.tar"
    if archive.is_file():
        return archive
    if shutil.which("debootstrap") is None:
        raise UnavailableError(
            "base images can neither be pulled nor made. As root: apt-get install -y --no-install-recommends debootstrap"
        )
    tell("making a base image from Debian's packages with debootstrap; this takes minutes")
    root = folder / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    try:
        include = f"--include={_PACKAGES}"
        call(["debootstrap", "--variant=minbase", include, "bookworm", str(root)], timeout_s=_MAKE_S)  # fmt: skip
        shutil.rmtree(root / "var" / "cache" / "apt" / "archives", ignore_errors=True)
        part = archive.with_suffix(".part")
        call(["tar", "-C", str(root), "-cf", str(part), "."], timeout_s=_MAKE_S)
        part.replace(archive)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return archive


def fetch_wheels(folder: Path, tell: Tell) -> Path:
    """Download everything that the images install, pinned; what is there already is kept."""
    folder_of_wheels, stamp = folder / "wheels", folder / "wheels.stamp"
    pins = [(ROOT / name).read_text() for name in ("constraints.txt", "requirements-images.txt")]
    state = hashlib.sha256(f"{pins}".encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == state:
        return folder_of_wheels
    tell(f"downloading the images' wheels into {folder_of_wheels}")
    call([sys.executable, "-m", "scripts.wheels", str(folder_of_wheels)], timeout_s=_BUILD_S)
    stamp.write_text(state)
    return folder_of_wheels


def lay_out(folder: Path) -> list[Path]:
    """Put wheels where the builder finds them; returns what has to be removed again."""
    laid = []
    for wheel in sorted(folder.glob("*.whl")):
        target = WHEELS / wheel.name
        if not target.exists():
            try:
                os.link(wheel, target)
            except OSError:  # another file system
                shutil.copy2(wheel, target)
            laid.append(target)
    return laid
