"""`make k8s-test`: every overlay and component on a real API server, placed by the real scheduler.

Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler from the folder KUBEBUILDER_ASSETS on loopback, describes
nodes (1, 4 or 8 with 8 GPUs, tainted or not, with CPU nodes or without), applies each overlay and each component
strictly, and demands that every pod is placed and that no claim for one node is mounted on two. No kubelet runs, so no
program does. Then the Helm chart of the same is installed, where there is helm. Without the last two programs everything is applied as a dry run, and nothing is placed. The definitions of
others' kinds come from the folder K8S_TEST_CRDS; without one any spec of theirs is taken. Everything is stopped and removed.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from scripts.k8s_test.cases import cases
from scripts.k8s_test.control_plane import binaries, control_plane
from scripts.k8s_test.custom import install
from scripts.k8s_test.trial import Verdict, try_case
from triforge.errors import TriforgeError

_SHOWN = 5  # problems of a case


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.k8s_test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="cases whose name matches this regular expression")  # fmt: skip
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="k8s-test-") as folder:
            return _try_all(re.compile(options.only), Path(folder))
    except KeyboardInterrupt:
        _say("k8s-test: interrupted; everything was stopped")
        return 130
    except TriforgeError as error:
        _say(f"k8s-test: nothing was tried. {error.detail}")
        return 1


def _try_all(only: re.Pattern[str], folder: Path) -> int:
    failed = tried = skipped = 0
    with control_plane(binaries(), folder) as plane:
        _say(f"API server {plane.version()}; {install(plane)}")
        if not plane.places:
            _say("admission only: kube-controller-manager and kube-scheduler are not in KUBEBUILDER_ASSETS")  # fmt: skip
        for number, case in enumerate(cases()):
            if not only.search(str(case)):
                continue
            begin = time.monotonic()
            verdict = try_case(plane, case, number)
            tried += not verdict.skipped
            skipped += bool(verdict.skipped)
            failed += bool(verdict.problems)
            _tell(verdict, time.monotonic() - begin)
    _say(f"{tried} cases, {failed} failed" + f", {skipped} not tried" * bool(skipped))
    return 1 if failed or not tried else 0


def _tell(verdict: Verdict, seconds: float) -> None:
    if verdict.skipped:
        _say(f"not tried: {verdict.case}: {verdict.skipped}")
        return
    where = ", ".join(f"{node} {count}" for node, count in verdict.on_nodes.items())
    _say(
        f"{'FAILED' if verdict.problems else 'ok'} {verdict.case}: {verdict.objects} objects, {verdict.pods} pods"
        f"{' (' + where + ')' if where else ''}, {seconds:.0f} s"
    )
    for problem in verdict.problems[:_SHOWN]:
        _say(f"    {problem}")
    if len(verdict.problems) > _SHOWN:
        _say(f"    and {len(verdict.problems) - _SHOWN} more")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 (a command's output)


if __name__ == "__main__":
    sys.exit(main())
