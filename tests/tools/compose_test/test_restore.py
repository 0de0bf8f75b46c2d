"""`scripts/compose_restore.sh` keeps the versions that rows name, their checkpoints included, and forgets the others."""

import re
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "compose_restore.sh"


def test_a_restore_keeps_the_checkpoints_of_named_versions_and_forgets_the_others(
    tmp_path: Path,
) -> None:
    found = re.search(r"sh -c '(.*?)' <<<", SCRIPT.read_text(), re.DOTALL)
    assert found
    step = (
        found[1]
        .replace("/data/artifacts", str(tmp_path))
        .replace("/tmp/named", str(tmp_path / "named"))
    )
    kept = ("weights/run-1/policy/v000001", "checkpoints/run-1/policy/v000001-ab12")
    gone = (
        "weights/run-1/policy/v000002",
        "checkpoints/run-1/policy/v000002-cd34",
        "checkpoints/run-2/policy/v000001-ef",
    )
    for name in kept + gone:
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["sh", "-c", step], input="run-1/policy/v000001\n", text=True, check=True)
    assert {name for name in kept + gone if (tmp_path / name).exists()} == set(kept)
