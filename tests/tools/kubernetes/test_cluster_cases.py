"""`make k8s-test` tries everything that there is, says what it lacks, and sees a pod that has no place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scripts.k8s_test.cases import CLUSTERS, ONLY, TOGETHER, cases
from scripts.k8s_test.trial import expected_pods, unplaced
from tests.tools.kubernetes.rendering import COMPONENTS, OVERLAYS, ROOT, render


def test_every_overlay_and_every_component_on_it_is_tried() -> None:
    tried = [case.variant for case in cases() if not case.chart]
    assert set(CLUSTERS) == set(OVERLAYS)
    for overlay in OVERLAYS:
        assert tried.count((overlay,)) == len(CLUSTERS[overlay])
        for component in COMPONENTS:
            expected = overlay in ONLY.get(component, CLUSTERS)
            assert ((overlay, component) in tried) is expected, (overlay, component)
    charts = [case.variant for case in cases() if case.chart]
    assert charts == [*((overlay,) for overlay in CLUSTERS), *TOGETHER]


def test_pods_are_counted_by_replicas_and_parallelism() -> None:
    assert expected_pods(render(("gpu-cluster",))) == 30


def test_a_pod_without_a_node_is_reported_with_the_message_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    pod = {"metadata": {"name": "learner-policy-0"}, "spec": {}, "status": {"conditions": [condition]}}  # fmt: skip
    placed = {"metadata": {"name": "reward"}, "spec": {"nodeName": "gpu-0"}, "status": {}}
    assert unplaced([pod, placed]) == ["learner-policy-0 is Pending: 0/4 nodes are available"]


@pytest.mark.parametrize("given", ["", "/nowhere"])
def test_without_programs_it_says_what_it_expects(given: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.k8s_test"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "KUBEBUILDER_ASSETS": given}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "KUBEBUILDER_ASSETS" in done.stdout
    for name in ("etcd", "kube-apiserver", "kube-scheduler"):
        assert name in done.stdout
