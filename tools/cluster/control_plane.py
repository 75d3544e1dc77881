"""etcd, kube-apiserver, kube-scheduler and kwok as child processes, on random ports of loopback.

All of them are one program (``kubelab``), chosen by the name of a symbolic link. It is searched at PERPHD_KUBELAB, then
in the cache, into which a packed program beside the checkout is unpacked, and where ``engines`` builds one. This module
downloads nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from tools.cluster.engines import CACHE, NoProgram, cached

VARIABLE: Final = "PERPHD_KUBELAB"
PACKED: Final = "shared/lab/engines/k8s/bin/kubelab.zst"
"""Places of the packed program: beside the checkout, or beside the folder of checkouts."""
READY_S: Final = 120.0
STOP_S: Final = 3.0
"""Seconds after which a component that has not ended is killed, which its users see as a crash."""

_PLAIN: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
"""


def program() -> Path:
    """The program, unpacked if necessary.

    Raises:
        NoProgram: there is none.
    """
    if named := os.environ.get(VARIABLE):
        if not os.access(named, os.X_OK):
            raise NoProgram(f"{VARIABLE}={named} is no program")
        return Path(named).resolve()
    here = Path(__file__).resolve()
    packed = next((path for above in here.parents[2:6] if (path := above / PACKED).is_file()), None)
    if packed is None:
        if (made := cached("kubelab")).is_file():
            return made
        raise NoProgram(
            f"no kubelab: set {VARIABLE}, put it at ../{PACKED}, or build it: make kubernetes-engines"
        )
    with packed.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    unpacked = CACHE / f"kubelab-{digest}"
    if not unpacked.is_file():
        if shutil.which("zstd") is None:
            raise NoProgram(f"zstd is needed to unpack {packed}")
        CACHE.mkdir(parents=True, exist_ok=True)
        part = CACHE / f"kubelab-{digest}.{os.getpid()}"
        subprocess.run(["zstd", "-q", "-d", "-f", "-o", str(part), str(packed)], check=True)
        part.chmod(0o755)
        part.rename(unpacked)
    return unpacked


def free_ports(count: int) -> list[int]:
    """Free ports of loopback."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class ControlPlane:
    """One cluster in a folder of its own. ``start`` and ``stop`` work for the whole and for single components.

    Args:
        folder: for keys, data and logs.
        scheduler: the kube-scheduler's configuration as it is shipped (YAML); empty: the default.
    """

    def __init__(self, folder: Path, scheduler: str = "") -> None:
        self.folder, self._scheduler = folder, scheduler
        folder.mkdir(parents=True, exist_ok=True)
        binary = program()
        for name in ("etcd", "kube-apiserver", "kube-scheduler", "kubectl", "kwok", "kwok-stages"):
            link = folder / "bin" / name
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(binary)
        self._etcd, self._peer, self._api, self._sched, self._kwok = free_ports(5)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starter = ThreadPoolExecutor(1, "control-plane")
        self.token = secrets.token_hex(16)
        self._secrets()

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self._api}"

    @property
    def api_port(self) -> int:
        """Port of the API server on 127.0.0.1."""
        return self._api

    @property
    def etcd_url(self) -> str:
        """Client address of the store."""
        return f"http://127.0.0.1:{self._etcd}"

    @property
    def token_file(self) -> Path:
        """File with the token of an administrator."""
        return self.folder / "token"

    @property
    def ca_file(self) -> Path:
        """The API server's self-signed certificate."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of an administrator."""
        return self.folder / "admin.kubeconfig"

    def _secrets(self) -> None:
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"],
            check=True,
            capture_output=True,
        )
        (self.folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self.token_file.write_text(self.token)
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(config))
        for path in (self.kubeconfig, self.token_file, self.folder / "tokens.csv", self.folder / "sa.key"):
            path.chmod(0o600)

    def start(self) -> None:
        """Start all components and wait until they answer."""
        self.start_etcd()
        self.start_api()
        self.start_scheduler(self._scheduler)
        self.start_kwok()

    def start_etcd(self) -> None:
        """Start the store; its data survive a restart."""
        url, peer = self.etcd_url, f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd", "--data-dir", f"{self.folder}/etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--unsafe-no-fsync", "--log-level", "error",
        )  # fmt: skip

    def start_api(self) -> None:
        """Start kube-apiserver with RBAC and wait for it. Admission plugins that need a controller are disabled."""
        key = str(self.folder / "sa.key")
        self._run(
            "kube-apiserver", "--etcd-servers", self.etcd_url, "--bind-address", "127.0.0.1",
            "--secure-port", str(self._api), "--cert-dir", f"{self.folder}/certs",
            "--service-cluster-ip-range", "10.0.0.0/24", "--service-account-issuer", "https://lab",
            "--service-account-key-file", key, "--service-account-signing-key-file", key,
            "--token-auth-file", f"{self.folder}/tokens.csv", "--authorization-mode", "Node,RBAC", "--allow-privileged",
            "--endpoint-reconciler-type", "none", "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        self._wait("kube-apiserver", f"{self.url}/readyz")

    def start_scheduler(self, config: str = "") -> None:
        """Start kube-scheduler with this configuration on this cluster."""
        text = config or _PLAIN
        client = f"  kubeconfig: {self.kubeconfig}\n  qps: 500\n  burst: 1000\nleaderElection: {{leaderElect: false}}"
        path = self.folder / "scheduler.yaml"
        path.write_text(text.replace("  kubeconfig: /etc/kubernetes/scheduler.conf", client))
        self._run(
            "kube-scheduler", "--config", str(path), "--bind-address", "127.0.0.1", "--secure-port", str(self._sched),
            "--cert-dir", f"{self.folder}/certs-scheduler",
        )  # fmt: skip
        self._wait("kube-scheduler", f"https://127.0.0.1:{self._sched}/healthz")

    def start_kwok(self) -> None:
        """Start kwok: nodes labelled ``type: kwok`` become ready, and their pods run, without a kubelet."""
        stages = subprocess.run([self.folder / "bin" / "kwok-stages"], check=True, capture_output=True).stdout
        (self.folder / "stages.yaml").write_bytes(stages)
        self._run(
            "kwok", "--config", f"{self.folder}/stages.yaml", "--kubeconfig", str(self.kubeconfig),
            "--manage-nodes-with-label-selector", "type=kwok", "--node-lease-duration-seconds", "40",
            "--server-address", f"127.0.0.1:{self._kwok}", "--node-ip", "127.0.0.1",
        )  # fmt: skip

    def stop(self, *names: str) -> None:
        """End these components, or all, last started first, and wait for each."""
        for name in names or tuple(reversed(self._running)):
            process = self._running.pop(name, None)
            if process is None:
                continue
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one component."""
        self._running[name].send_signal(number)

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run kubectl; returns its output.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        command = [str(self.folder / "bin" / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command: Sequence[str] = [str(self.folder / "bin" / name), *arguments]
            # Children receive SIGTERM when this process dies for any reason. The kernel sends the signal at the end of
            # the thread that started the program, so one thread starts all programs and lives as long as this object.
            command = ["setpriv", "--pdeathsig", "TERM", *command]
            self._running[name] = self._starter.submit(_started, command, log).result()

    def _wait(self, name: str, url: str) -> None:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})

        def answers() -> bool:
            with urllib.request.urlopen(asked, timeout=2, context=trusting) as answer:
                return bool(answer.status == 200)

        self._until(name, answers)

    def _until(self, name: str, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + READY_S
        while time.monotonic() < ends:
            if (status := self._running[name].poll()) is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {status}: {log}")
            try:
                if holds():
                    return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{name} is not ready after {READY_S:.0f} s: {self.folder}/{name}.log")


def _started(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
