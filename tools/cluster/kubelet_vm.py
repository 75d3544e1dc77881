"""A real node of a control plane in a virtual machine: kubelet, containerd and runc as units of systemd, on cgroup v2.

Here kubelet's tree is the machine's own, with kubelet's systemd driver or its cgroupfs driver. The API server on this
host is reached from the machine at the same port of its loopback, through ssh.

kubelet is searched as in ``kubelet_node``; containerd and runc are the image's (``image(..., extra=PACKAGE)``).
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tools.cluster.control_plane import ControlPlane
from tools.cluster.kubelet_node import kubelet_configuration, kubelet_program, write_images
from tools.vm.machine import Machine

PACKAGE: Final = "containerd"
"""Additional Debian package of the machine's image; runc comes with it."""
READY_S: Final = 600.0
_ADDRESS: Final = "10.0.2.15"
_FOLDER: Final = "/var/lib/kubelet"
_SOCKET: Final = "/run/containerd/containerd.sock"

_CONTAINERD: Final = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = {systemd}
"""

_UNIT: Final = """\
[Unit]
After=containerd.service
[Service]
ExecStart=/usr/local/bin/kubelet --config {folder}/config.yaml --kubeconfig {folder}/kubeconfig \
--hostname-override {name} --node-ip {address} --node-labels type=real
"""


class KubeletVm:
    """One node in a booted machine. Its changes are undone only by ending the machine.

    Args:
        plane: the cluster that it joins.
        machine: booted from an image that has PACKAGE.
        name: of the node.
        driver: kubelet's and runc's: ``systemd`` or ``cgroupfs``.
        options: further keys of KubeletConfiguration.
    """

    def __init__(
        self,
        plane: ControlPlane,
        machine: Machine,
        name: str,
        driver: str,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._plane, self.machine, self.name, self._driver = plane, machine, name, driver
        self._kubelet = kubelet_program()
        self._options = options or {}
        self._tunnel: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start all programs and wait until the node is ready."""
        self._open_tunnel()
        self.machine.unpack(self._files(), "/")
        self.sh("systemctl restart containerd")
        self.sh("for each in /root/images/*.tar; do ctr -n k8s.io images import $each || exit 1; done")
        self.sh("systemctl daemon-reload && systemctl start kubelet")
        self._await_ready()

    def set_options(self, options: dict[str, Any]) -> None:
        """Restart kubelet with these further keys of KubeletConfiguration."""
        self._options |= options
        self.sh(f"cat > {_FOLDER}/config.yaml && systemctl restart kubelet", self._configuration().encode())
        self._await_ready()

    def _await_ready(self) -> None:
        ends = time.monotonic() + READY_S
        while not self._is_ready():
            if time.monotonic() > ends:
                raise RuntimeError(
                    f"kubelet is not ready after {READY_S:.0f} s: "
                    + self.sh("journalctl -u kubelet -n 30 --no-pager")
                )
            time.sleep(1.0)

    def stop(self) -> None:
        """End the connection to the API server; the caller ends the machine."""
        if self._tunnel is not None:
            self._tunnel.terminate()
            self._tunnel.wait()
            self._tunnel = None

    def sh(self, command: str, stdin: bytes = b"") -> str:
        """Run a command in the machine; returns its output.

        Raises:
            RuntimeError: it failed.
        """
        done = self.machine.run(command, stdin=stdin, timeout_s=READY_S)
        if done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout.decode()

    def _open_tunnel(self) -> None:
        port = self._plane.api_port
        forwarded = ["-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
        # sshd uses the first value of an option.
        command = ["ssh", *forwarded, "-N", "-R", f"127.0.0.1:{port}:127.0.0.1:{port}", *self.machine.ssh]
        self._tunnel = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _files(self) -> bytes:
        """The machine's additional files, as an archive to unpack at its root."""
        loopback = {"cniVersion": "0.4.0", "name": "lo", "plugins": [{"type": "loopback"}]}
        texts = {
            "etc/containerd/config.toml": _CONTAINERD.format(systemd=str(self._driver == "systemd").lower()),
            # Pods use the machine's network; kubelet only checks that a configuration exists.
            "etc/cni/net.d/10-lo.conflist": json.dumps(loopback),
            "etc/systemd/system/kubelet.service": _UNIT.format(
                folder=_FOLDER, name=self.name, address=_ADDRESS
            ),
            f"{_FOLDER}/config.yaml": self._configuration(),
            f"{_FOLDER}/kubeconfig": self._plane.kubeconfig.read_text(),
            f"{_FOLDER}/ca.crt": self._plane.ca_file.read_text(),
        }
        packed = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w") as tar:
            for name, text in texts.items():
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
            for archive in write_images(Path(folder)):
                tar.add(archive, f"root/images/{archive.name}")
            tar.add(self._kubelet, "usr/local/bin/kubelet")
        return packed.getvalue()

    def _configuration(self) -> str:
        options = {"cgroupDriver": self._driver, **self._options}
        return json.dumps(kubelet_configuration(_SOCKET, f"{_FOLDER}/ca.crt", options))

    def _is_ready(self) -> bool:
        path = "{.status.conditions[?(@.type=='Ready')].status}"
        try:
            return self._plane.kubectl("get", "node", self.name, "-o", f"jsonpath={path}") == "True"
        except subprocess.CalledProcessError:
            return False
