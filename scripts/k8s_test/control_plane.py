"""A Kubernetes control plane on loopback, without a kubelet: what it admits and where it puts pods is real, and nothing runs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.k8s_test.manifests import HELM, KUBECTL
from triforge.errors import ConfigError, UnavailableError
from triforge.supervisor.ports import free_port

_NEEDED = ("etcd", "kube-apiserver")
_PLACING = ("kube-controller-manager", "kube-scheduler")
_START_S = 120.0


def binaries() -> Path:
    """Return the folder that KUBEBUILDER_ASSETS names.

    Raises:
        ConfigError: there is none, or it lacks a program.
    """
    given = os.environ.get("KUBEBUILDER_ASSETS", "")
    absent = [name for name in _NEEDED if not (Path(given) / name).is_file()]
    if not given or absent:
        raise ConfigError(
            f"KUBEBUILDER_ASSETS: given {given or 'nothing'}, expected a folder with {', '.join(_NEEDED)}, and with {', '.join(_PLACING)} "
            "so that pods are placed; `setup-envtest use -p path` of controller-runtime fetches the first two, Kubernetes' server archive has the others"
        )
    return Path(given).resolve()


class ControlPlane:
    """An API server that one may ask, through kubectl."""

    def __init__(self, kubeconfig: Path, *, places: bool) -> None:
        self.places = places  # whether pods are made and scheduled
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """Run kubectl; returns what it says.

        Raises:
            UnavailableError: it failed; the sentence is its own.
        """
        return self._run([KUBECTL, "--request-timeout=60s", *words], given)

    def helm(self, *words: str) -> str:
        """Run helm; returns what it says.

        Raises:
            UnavailableError: it failed, or the API server warned; the sentence is theirs.
        """
        return self._run([HELM or "helm", *words])

    def _run(self, command: list[str | Path], given: str | None = None) -> str:
        done = subprocess.run(  # noqa: S603 (no shell; the words are ours)
            command, input=given, capture_output=True, text=True, check=False, env=self._environment
        )  # fmt: skip
        if done.returncode:
            raise UnavailableError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def version(self) -> str:
        return str(json.loads(self.kubectl("get", "--raw", "/version"))["gitVersion"])

    def list(self, kind: str, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json", *words))["items"]  # fmt: skip
        return found


@contextlib.contextmanager
def control_plane(programs: Path, folder: Path) -> Iterator[ControlPlane]:
    """Start one that keeps its state and logs in an empty folder; it ends with the context."""
    with ExitStack() as running:
        store, port = free_port(), free_port()
        folder.chmod(0o700)
        token = secrets.token_hex(24)
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        key = folder / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)  # noqa: S603, S607
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(port, folder, token)))
        url = f"http://127.0.0.1:{store}"

        def start(name: str, *options: str) -> None:
            running.enter_context(_process([str(programs / name), *options], folder))

        start("etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
              f"--listen-peer-urls=http://127.0.0.1:{free_port()}", "--unsafe-no-fsync")  # fmt: skip
        start("kube-apiserver", f"--etcd-servers={url}", f"--secure-port={port}", "--bind-address=127.0.0.1",
              f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
              "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
              f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/16")  # fmt: skip
        plane = ControlPlane(
            kubeconfig, places=all((programs / name).is_file() for name in _PLACING)
        )
        _wait_until_ready(plane, folder)
        if plane.places:
            asks = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
            speed = ("--kube-api-qps=400", "--kube-api-burst=800")
            # no kubelet reports, and no node is to be given up for it
            start("kube-controller-manager", *asks, *speed, "--node-monitor-grace-period=24h",
                  f"--service-account-private-key-file={key}", f"--root-ca-file={folder / 'certificates' / 'apiserver.crt'}")  # fmt: skip
            start("kube-scheduler", *asks, *speed)
        yield plane


def _kubeconfig(port: int, folder: Path, token: str) -> dict[str, Any]:
    authority = str(folder / "certificates" / "apiserver.crt")  # which the server makes for itself
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }


def _wait_until_ready(plane: ControlPlane, folder: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with contextlib.suppress(UnavailableError):
            if plane.kubectl("get", "--raw", "/readyz") == "ok":
                return
        time.sleep(0.5)
    raise UnavailableError(
        f"kube-apiserver: not ready after {_START_S:.0f} s; {folder}/kube-apiserver.log says why"
    )


@contextlib.contextmanager
def _process(command: Sequence[str], folder: Path) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        child = subprocess.Popen(  # noqa: S603 (no shell; the words are ours)
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder
        )
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
