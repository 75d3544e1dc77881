"""A real node of a control plane: kubelet, containerd and runc on this host, without a virtual machine.

They run in a separate mount namespace, in which /run, /var/lib and /var/log are empty and /proc/sys is read-only: no
file, mount or setting of the host changes, and all mounts end with the namespace. A program that should find pods as on
a node, such as the daemon, is started in the same namespace. Pods use the host's network; their processes are in
control groups below one group of this node's own.

kubelet is searched at PERPHD_KUBELET, then in the cache; containerd, runc and busybox are Debian's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.lookup import Lookup
from tools.cluster.control_plane import ControlPlane, free_ports
from tools.cluster.engines import NoProgram, cached

VARIABLE: Final = "PERPHD_KUBELET"
NEEDED: Final = ("containerd", "ctr", "runc", "busybox", "unshare", "nsenter", "setpriv")
READY_S: Final = 120.0
_PRIVATE: Final = ("/run", "/var/lib", "/var/log")
_SYSCTLS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings that kubelet expects on its host. kubelet reads these values here; the host keeps its own."""
_TOOLS: Final = ("sh", "sleep", "cat", "true", "dd")

_CONTAINERD: Final = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def kubelet_program() -> Path:
    """kubelet's program, after a check for everything else that the node needs.

    Raises:
        NoProgram: a program is missing; the text names it.
    """
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else cached("kubelet")
    if not os.access(path, os.X_OK):
        wanted = f"no kubelet: set {VARIABLE}, or build it: make kubernetes-engines"
        raise NoProgram(f"{VARIABLE}={named} is no program" if named else wanted)
    if os.geteuid() != 0:
        raise NoProgram("kubelet needs root")
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        raise NoProgram(f"no {', '.join(absent)}: packaging/apt-install node")
    if _address() is None:
        raise NoProgram("kubelet refuses a host that has no address but loopback's")
    return path.resolve()


def _address() -> str | None:
    """An address of this host outside loopback; nothing listens on it."""
    found = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
    return next(
        (
            each.address
            for each in found
            if each.family == socket.AF_INET and not each.address.startswith("127.")
        ),
        None,
    )


def _cgroup_mounts() -> list[str]:
    """All hierarchies, including those without a controller, which runc uses."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [mount for _, mount, kind, *_ in lines if kind in ("cgroup", "cgroup2")]


class KubeletNode:
    """One node in a folder of its own. ``stop`` removes all of its traces from the host.

    Args:
        plane: the cluster that it joins.
        folder: for configuration, images and logs.
        name: of the node.
        options: further keys of KubeletConfiguration.
    """

    def __init__(
        self, plane: ControlPlane, folder: Path, name: str, options: dict[str, Any] | None = None
    ) -> None:
        self._plane, self.folder, self.name = plane, folder, name
        self._kubelet = kubelet_program()
        folder.mkdir(parents=True, exist_ok=True)
        self._top = f"/perphd-test-kube-{os.getpid()}"
        self.group = f"{self._top}/nodes/{name}"
        """The control group of all pods of this node, in every hierarchy: kubelet's ``cgroupRoot``."""
        self._mounts = _cgroup_mounts()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starter = ThreadPoolExecutor(1, "kubelet-node")
        self._port, self._health = free_ports(2)
        self._options = options or {}

    # -- the whole -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until the node is ready."""
        self._make_groups()
        self._write_configuration()
        self._run(
            "namespace", "unshare", "-m", "--propagation", "private", "sh", str(self.folder / "namespace.sh")
        )
        self._until("namespace", (self.folder / "namespace.ready").exists)
        self.start_containerd()
        for archive in write_images(self.folder):
            self.import_image(archive)
        self.start_kubelet()

    def import_image(self, archive: Path) -> None:
        """Give containerd an image, by the name in its archive."""
        self._ctr("-n", "k8s.io", "images", "import", str(archive))

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers. It finds running containers again."""
        self.run_inside("containerd", "containerd", "-c", str(self.folder / "containerd.toml"))
        self._until("containerd", lambda: self._ctr("version", check=False) == 0)

    def start_kubelet(self, options: dict[str, Any] | None = None) -> None:
        """Start kubelet and wait until the node is ready. ``options``: further keys of KubeletConfiguration."""
        self._options |= options or {}
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet_configuration()))
        self.run_inside(
            "kubelet", str(self._kubelet), "--config", f"{self.folder}/kubelet.yaml",
            "--kubeconfig", str(self._plane.kubeconfig), "--cert-dir", f"{self.folder}/certs",
            "--hostname-override", self.name, "--node-ip", str(_address()), "--node-labels", "type=real",
        )  # fmt: skip
        self._until("kubelet", self._is_ready)

    def stop(self) -> None:
        """End kubelet, containers, containerd and the namespace, and remove the control groups."""
        self.end("kubelet")
        for name in [each for each in self._running if each not in ("containerd", "namespace")]:
            self.end(name)
        self._kill_containers()
        self.end("containerd")
        self.end("namespace")
        ends = time.monotonic() + 10.0
        while not self._remove_groups() and time.monotonic() < ends:
            self._kill_containers()
            time.sleep(0.1)
        self._starter.shutdown()

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End one of the programs and wait for it."""
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def run_inside(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program in this node's mount namespace; its output is in the folder's NAME.log."""
        inside = ["nsenter", "-m", "-t", str(self._running["namespace"].pid), "-w" + os.getcwd(), *command]
        return self._run(name, *inside, **environment)

    def inside(self, path: str) -> Path:
        """The path outside the namespace for a path inside it."""
        return Path(f"/proc/{self._running['namespace'].pid}/root{path}")

    # -- pods ----------------------------------------------------------------------------------------------------

    @property
    def lookup(self) -> Lookup:
        """A lookup that finds pods on this node like a program in its namespace."""
        fs = RealFs(self.inside("/"))
        return Lookup(fs, discover(fs))

    def execute(self, container: str, *command: str) -> str:
        """Output of a command in a running container, named by its id.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        arguments = ["-n", "k8s.io", "tasks", "exec", "--exec-id", f"test-{time.monotonic_ns()}", container]
        return subprocess.run(
            self._ctr_command(*arguments, *command), check=True, capture_output=True, text=True
        ).stdout

    def processes(self, cgroup: str) -> set[int]:
        """Processes in a control group and below it."""
        return {
            int(pid)
            for mount in self._mounts
            for file in Path(mount + cgroup).glob("**/cgroup.procs")
            for pid in file.read_text().split()
        }

    # -- parts ---------------------------------------------------------------------------------------------------

    def _make_groups(self) -> None:
        for mount in self._mounts:
            made = Path(mount)
            for part in self.group.strip("/").split("/"):
                made /= part
                made.mkdir(exist_ok=True)
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if (made / name).exists():
                        (made / name).write_text(Path(mount, name).read_text())

    def _remove_groups(self) -> bool:
        left = False
        for mount in self._mounts:
            top = Path(mount + self._top)
            for folder in sorted((each for each in (top, *top.glob("**/")) if each.exists()), reverse=True):
                with suppress(OSError):
                    folder.rmdir()
            left = left or top.exists()
        return not left

    def _processes(self) -> Iterator[int]:
        for mount in self._mounts:
            for file in Path(mount + self.group).glob("**/cgroup.procs"):
                with suppress(OSError):
                    yield from map(int, file.read_text().split())

    def _kill_containers(self) -> None:
        for pid in set(self._processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        address = f"{self.folder}/containerd.sock"
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):
                if process.info["name"].startswith("containerd-shim") and address in process.cmdline():
                    process.kill()

    def _write_configuration(self) -> None:
        for name in ("cni", "static", "plugins", "sysctl", "opt"):
            (self.folder / name).mkdir(exist_ok=True)
        # Pods use the host's network; kubelet only checks that a configuration exists.
        loopback = {"cniVersion": "0.4.0", "name": "lo", "plugins": [{"type": "loopback"}]}
        (self.folder / "cni" / "10-lo.conflist").write_text(json.dumps(loopback))
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(folder=self.folder))
        lines = ["set -e", "mount --make-rshared /"]
        lines += [f"mount -t tmpfs none {path}" for path in _PRIVATE]
        lines += ["mount --bind /proc/sys /proc/sys", "mount -o remount,bind,ro /proc/sys"]
        for key, value in _SYSCTLS.items():
            file = self.folder / "sysctl" / key.replace("/", ".")
            file.write_text(f"{value}\n")
            lines.append(f"mount --bind {file} /proc/sys/{key}")
        lines += [f"touch {self.folder}/namespace.ready", "exec sleep infinity"]
        (self.folder / "namespace.sh").write_text("\n".join(lines) + "\n")

    def _kubelet_configuration(self) -> dict[str, Any]:
        own = {
            "port": self._port, "healthzBindAddress": "127.0.0.1", "healthzPort": self._health,
            "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": self.group, "enforceNodeAllocatable": [],
            "staticPodPath": f"{self.folder}/static", "volumePluginDir": f"{self.folder}/plugins",
            "nodeStatusUpdateFrequency": "5s", "syncFrequency": "10s",
        }  # fmt: skip
        return kubelet_configuration(
            f"{self.folder}/containerd.sock", str(self._plane.ca_file), own | self._options
        )

    def _is_ready(self) -> bool:
        path = "{.status.conditions[?(@.type=='Ready')].status}"
        try:
            return self._plane.kubectl("get", "node", self.name, "-o", f"jsonpath={path}") == "True"
        except subprocess.CalledProcessError:
            return False

    def _ctr(self, *arguments: str, check: bool = True) -> int:
        return subprocess.run(self._ctr_command(*arguments), check=check, capture_output=True).returncode

    def _ctr_command(self, *arguments: str) -> list[str]:
        inside = ["nsenter", "-m", "-t", str(self._running["namespace"].pid)]
        return [*inside, "ctr", "-a", f"{self.folder}/containerd.sock", *arguments]

    def _run(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        whole: Sequence[str] = ["setpriv", "--pdeathsig", "TERM", *command]
        with (self.folder / f"{name}.log").open("ab") as log:

            def begin() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
                )

            # One thread starts all programs, since the kernel sends the signal when the starting thread ends.
            self._running[name] = self._starter.submit(begin).result()
        return self._running[name]

    def _until(self, name: str, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + READY_S
        while not holds():
            status = self._running[name].poll()
            if status is not None or time.monotonic() > ends:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                ended = (
                    f"ended with {status}" if status is not None else f"is not ready after {READY_S:.0f} s"
                )
                raise RuntimeError(f"{name} {ended}: {log}")
            time.sleep(0.1)


def kubelet_configuration(socket: str, ca_file: str, options: dict[str, Any]) -> dict[str, Any]:
    """A KubeletConfiguration of a small node whose pods name it.

    ``socket``: containerd's. ``ca_file``: whose clients kubelet serves. ``options``: further keys.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False}, "webhook": {"enabled": False}, "x509": {"clientCAFile": ca_file},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "failSwapOn": False, "makeIPTablesUtilChains": False, "containerRuntimeEndpoint": f"unix://{socket}",
        "localStorageCapacityIsolation": False, "evictionHard": {}, "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
        # No scheduler places pods here; pods that name the node run nevertheless.
        "registerWithTaints": [{"key": "perphd.io/test", "value": "kubelet", "effect": "NoSchedule"}],
        **options,
    }  # fmt: skip


def write_images(folder: Path) -> list[Path]:
    """Archives of the sandbox's image and of the pods' image ``localhost/busybox:1``."""
    made = []
    for name, command in (("pause", ["/bin/sleep", "2147483647"]), ("busybox", ["/bin/sh"])):
        made.append(folder / f"{name}.tar")
        _write_image(made[-1], f"localhost/{name}:1", command)
    return made


def _write_image(file: Path, name: str, command: Sequence[str]) -> None:
    """An image with only busybox, as an archive for ``ctr images import``."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "tmp", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(str(shutil.which("busybox")), "bin/busybox")
        for tool in _TOOLS:
            entry = tarfile.TarInfo(f"bin/{tool}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    data = layer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64", "os": "linux", "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()  # fmt: skip
    layer_name, config_name = f"{digest}/layer.tar", f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).encode()
    parts = {layer_name: data, config_name: config, "manifest.json": manifest}
    with tarfile.open(file, "w") as tar:
        for path, content in parts.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
