"""The output of `scripts.further_model`: an engine, a policy service and a learner for a further model, that reach each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.further_model import copies, main
from tests.tools.kubernetes.rendering import named, render, workloads
from tests.tools.kubernetes.test_network import Cluster
from tests.tools.kubernetes.test_schemas import validate
from triforge.config import Settings

ROOT = Path(__file__).parents[3]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.parametrize(("like", "port"), [("policy", 8001), ("reward", 8011)])
def test_a_compose_file_has_the_same_services_under_other_names(like: str, port: int) -> None:
    written = copies(
        (ROOT / "docker-compose.yml").read_text(), "mover", path="/models/mover", like=like
    )
    models = f"mover=http://mover-model:{port}"
    assert written.startswith(f"# in .env: TRIFORGE_MODELS={models}\n")
    made = yaml.safe_load(written)["services"]
    kinds = ("engine", "sglang", "learner", "cuda-learner")
    assert made.keys() == {*(f"{kind}-mover" for kind in kinds), "mover-model"}
    assert not made.keys() & SERVICES.keys()
    service, plain = made["mover-model"], SERVICES[f"{like}-model"]
    own = {"TRIFORGE_ROLE": "mover", "TRIFORGE_ENGINES": "http://engine-mover:9001", "TRIFORGE_MODEL": "/models/mover"}  # fmt: skip
    assert service["environment"] == plain["environment"] | own
    assert (service["build"], "ports" in service) == (plain["build"], False)
    assert service["depends_on"].keys() > {"engine-mover", "sglang-mover"}
    for kind in kinds:
        text = str(made[f"{kind}-mover"].get("command", "")) + str(made[f"{kind}-mover"])
        assert f"{like}'" not in text.replace(f"triforge/{like}", ""), kind
    assert made["learner-mover"]["command"] == ["--role", "mover"]
    assert Settings(models=models, role="mover").model_url("mover").endswith(str(port))


@pytest.mark.parametrize("overlay", ["cpu", "gpu-single-node", "gpu-cluster"])
@pytest.mark.parametrize(("like", "caller"), [("policy", "rollout-worker"), ("reward", "judge-worker")])  # fmt: skip
def test_in_kubernetes_the_copies_are_reached_as_what_they_are_copies_of(
    overlay: str, like: str, caller: str
) -> None:
    documents = render((overlay,))
    text = yaml.safe_dump_all(documents)
    made = [*yaml.safe_load_all(copies(text, "mover", path="/models/mover", like=like))]
    assert not {named(d) for d in made} & {named(d) for d in documents}
    assert len({named(d) for d in made}) == len(made)
    for document in made:
        validate(document)
    pods = {template["metadata"]["labels"]["app.kubernetes.io/name"] for _, template in workloads(made)}  # fmt: skip
    assert pods == {"engine-mover", "mover-model", "learner-mover"}
    cluster = Cluster(documents + made)
    here, there = f"{like}-model", "mover-model"
    calls = [(caller, here, there), ("trainer", here, there), ("dashboard", here, there)]
    for client, old, new in calls:
        assert (
            cluster.out(client, new) & cluster.into(client, new)
            == (cluster.out(client, old) & cluster.into(client, old))
            != set()
        )
    for client, server in (("mover-model", "engine-mover"), ("mover-model", "valkey"), ("mover-model", "postgres"), ("learner-mover", "valkey")):  # fmt: skip
        assert cluster.out(client, server) & cluster.into(client, server), (client, server)
    assert not cluster.into(caller, "engine-mover")
    text = yaml.safe_dump_all(d for d in made if d["kind"] not in ("NetworkPolicy",))
    assert f"/models/{like}" not in text
    (trained,) = [
        d for d in made if d["metadata"]["name"] == "learner-mover" and "template" in d["spec"]
    ]
    args = " ".join(trained["spec"]["template"]["spec"]["containers"][0]["args"])
    assert "--role mover" in args


def test_a_name_that_no_model_may_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["My_model", "--path", "/m"])
    assert "given 'My_model'" in capsys.readouterr().err
