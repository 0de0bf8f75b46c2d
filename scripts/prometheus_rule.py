"""Write the alerts of deploy/prometheus/rules.yml as the resource that the Prometheus operator reads.

    python -m scripts.prometheus_rule

Kustomize reads no file from outside its folder, so this copies the rules.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "deploy" / "prometheus" / "rules.yml"
TARGET = ROOT / "k8s" / "components" / "monitoring" / "rules.yaml"

_HEAD = """\
# Written by `python -m scripts.prometheus_rule` from deploy/prometheus/rules.yml; change that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: triforge
spec:
"""


def resource(rules: str) -> str:
    """Return the resource of a file of rules, line by line, without its comments."""
    lines = [
        line.partition(" # ")[0] for line in rules.splitlines() if not line.lstrip().startswith("#")
    ]
    return _HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


if __name__ == "__main__":
    TARGET.write_text(resource(SOURCE.read_text()))
