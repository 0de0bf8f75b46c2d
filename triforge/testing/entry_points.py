"""A package that offers an environment family, as an installer leaves it: for tests of the registry and for benches."""

from __future__ import annotations

from pathlib import Path

from triforge.environments.registry import GROUP


def offer_family(folder: Path, name: str, target: str) -> None:
    """Write the metadata of an installed package to `folder`, which must be on the path: `name = "target"` in our group."""
    info = folder / f"{name}_package-1.0.dist-info"
    info.mkdir(parents=True)
    about = f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.0\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {target}\n", encoding="utf-8")
