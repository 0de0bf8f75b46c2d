"""Copies what serves and trains one model of a deployment for a further one (docs/train.md, "Several trained models").

    python -m scripts.further_model mover --path /models/mover --file docker-compose.yml > docker-compose.mover.yml
    kubectl kustomize k8s/overlays/cpu | python -m scripts.further_model mover --path /models/mover > mover.yaml

The copies are an engine, a policy service and a learner, with network policies of their own. `--like reward` copies those of the
reward model, which judge workers reach: for a model that judges. The first line of the output says what else to set.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from triforge.config.base import ROLE_NAME

_BARE = ("command", "args", "value", "TRIFORGE_ROLE")  # fields where the role's bare name stands
_PARTS = r"\b(engine|sglang|cuda-learner|learner)-{0}\b|\b{0}-model\b"


class Copier:
    """Renames what belongs to one model.

    Args:
        name: of the further model, `like` whose parts are copied, `path` its folder as containers see it.
    """

    def __init__(self, name: str, like: str, path: str) -> None:
        self._name, self._like, self._path = name, like, path
        self._parts = re.compile(_PARTS.format(like))

    def mentions(self, text: str) -> bool:
        """Whether a name is of the model that is copied."""
        return self._parts.search(text) is not None

    def renamed(self, given: Any, field: str = "") -> Any:
        """Return the same of the further model; `field` is where it stands."""
        if field.endswith("_URL"):  # of the deployment's other services
            return given
        if isinstance(given, dict):
            return {self.renamed(key): self.renamed(value, key) for key, value in given.items()}
        if isinstance(given, list):
            return [self.renamed(item, field) for item in given]
        if not isinstance(given, str):
            return given
        text = self._parts.sub(
            lambda m: f"{m[1]}-{self._name}" if m[1] else f"{self._name}-model", given
        )
        upper = self._like.upper()
        text = re.sub(
            rf"\$\{{{upper}_MODEL:-[^}}]*\}}|(?<![^=])/models/{self._like}$", self._path, text
        )
        text = re.sub(rf"{upper}_GPU:-\d+", f"{self._name.upper()}_GPU:-0", text)
        if field not in _BARE:
            return text
        return re.sub(
            rf"(^|--served-model-name=|--role ){self._like}\b(?!-)", rf"\g<1>{self._name}", text
        )

    def services(self, services: dict[str, Any]) -> dict[str, Any]:
        """Return the services of a compose file, without ports of the host."""
        return {
            self.renamed(name): self.renamed(
                {field: value for field, value in service.items() if field != "ports"}
            )
            for name, service in services.items()
            if self.mentions(name)
        }

    def manifests(self, documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the Kubernetes objects named after the model, and every network policy that lets it through."""
        for document in documents:
            own = self.mentions(document["metadata"]["name"])
            if not own and document["kind"] != "NetworkPolicy":
                continue
            made = self.renamed(document)
            if made != document:
                if not own:
                    made["metadata"]["name"] += f"-{self._name}"
                yield made


def copies(text: str, name: str, *, path: str, like: str = "policy") -> str:
    """Return what is to be written, of a compose file or of manifests."""
    documents = [found for found in yaml.safe_load_all(text) if found]
    copier, made = Copier(name, like, path), list[dict[str, Any]]()
    composed = len(documents) == 1 and "services" in documents[0]
    if composed:
        made.append({"services": copier.services(documents[0]["services"])})
    else:
        made += copier.manifests(documents)
    place = ".env" if composed else "the ConfigMap triforge-env"
    address = f"http://{name}-model:{8001 if like == 'policy' else 8011}"
    first = f"# in {place}: TRIFORGE_MODELS={name}={address}\n"
    return first + yaml.safe_dump_all(made, sort_keys=False, width=120)


def main(arguments: list[str] | None = None) -> int:
    """Write the copies to standard output; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.further_model", description=__doc__)
    parser.add_argument("name", help="of the model, as in models.NAME of the document")
    parser.add_argument("--path", required=True, help="its folder, as containers see it")
    parser.add_argument("--like", choices=("policy", "reward"), default="policy")
    parser.add_argument(
        "--file", type=Path, help="docker-compose.yml, or manifests; without it standard input"
    )
    given = parser.parse_args(arguments)
    if not re.fullmatch(ROLE_NAME, given.name):
        parser.error(f"name: given {given.name!r}, expected small letters and digits, at most 16")
    text = given.file.read_text() if given.file else sys.stdin.read()
    sys.stdout.write(copies(text, given.name, path=given.path, like=given.like))
    return 0


if __name__ == "__main__":
    sys.exit(main())
