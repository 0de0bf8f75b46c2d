"""`make chart`: write the Helm chart in k8s/helm/triforge from the overlays and components in k8s/.

The templates have every object of every overlay once, with conditions where overlays and components differ, and `values.schema.json`
says what the values may be; both are written here. Chart.yaml, values.yaml and NOTES.txt are written by hand.
"""

from __future__ import annotations

import json

from scripts.helm_chart.templates import templates
from scripts.helm_chart.values import checks, schema
from scripts.k8s_test.manifests import K8S

CHART = K8S / "helm" / "triforge"


def chart() -> dict[str, str]:
    """Text of every file that is written, by its path in the chart."""
    lines = [line for term, sentence in checks() for line in (f"{{{{- if {term} }}}}", f"{{{{- fail {json.dumps(sentence)} }}}}", "{{- end }}")]  # fmt: skip
    files = {"templates/checks.yaml": "\n".join(lines) + "\n", "values.schema.json": json.dumps(schema(), indent=2) + "\n"}  # fmt: skip
    return files | {f"templates/{name}": text for name, text in templates().items()}


def main() -> None:
    """Write them, and remove templates that are no longer there."""
    written = chart()
    for path in CHART.glob("templates/*.yaml"):
        if f"templates/{path.name}" not in written:
            path.unlink()
    for name, text in written.items():
        (CHART / name).write_text(text)


if __name__ == "__main__":
    main()
