"""A virtual machine under QEMU: booted on an overlay of an image, reached through ssh, ended by its process id.

Its only network is the forwarded ssh port on loopback. Its processors are emulated, some ten times
slower, unless PERPHD_VM_ACCEL=kvm is set.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.vm.image import Image
from tools.vm.making import VmError
from tools.vm.shell import SPARED, Shell, ShellEnded

# Time-outs in seconds, long enough for busy machines.
BOOT_S = 600.0
COMMAND_S = 300.0
INBOX_BYTES = 256 << 20
COMMAND_LINE = (
    "console=ttyS0 root=/dev/vda rw quiet loglevel=4 systemd.show_status=false mitigations=off tsc=reliable "
    "no_timer_check cryptomgr.notests systemd.unified_cgroup_hierarchy=1 net.ifnames=0 panic=-1"
)
EMULATED = f" clearcpuid=cx16 init_on_alloc=0 systemd.setenv={SPARED}"
"""Pages that are overwritten anyway are not zeroed first, which saves a fifth of a program's start.

Before QEMU 8.0, an emulated cmpxchg16b without a lock leaves random bits in the flags, and the next interrupt saves
them: Linux 6.12, whose allocator relies on that instruction, panics within seconds. The kernel is therefore told not to
use it. Programs use it with a lock or not at all and still see it (numpy requires it).
"""


@dataclass(frozen=True, slots=True)
class Emulator:
    """The QEMU that runs a machine, and the processor that it emulates. ``kvm``: whether it may use KVM instead."""

    command: tuple[str, ...] = ("qemu-system-x86_64",)
    processor: str = "max"
    kvm: bool = True


class Machine:
    """One machine with its files in ``folder``; a running machine there is adopted."""

    def __init__(
        self,
        image: Image,
        folder: Path,
        *,
        cpus: int = 2,
        sockets: int = 1,
        memory_mb: int = 1536,
        emulator: Emulator | None = None,
    ) -> None:
        self.image, self.folder = image, folder
        self._cpus, self._sockets, self._memory_mb = cpus, sockets, memory_mb
        self._emulator = emulator or Emulator()
        self._shell: Shell | None = None

    @property
    def pid(self) -> int | None:
        """QEMU's process id, if it runs."""
        try:
            pid = int((self.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.folder / "disk.qcow2") in command else None

    @property
    def ssh(self) -> tuple[str, ...]:
        """The arguments of ssh."""
        port = (self.folder / "port").read_text()
        options = {
            "IdentityFile": str(self.image.key),
            "Port": port,
            "BatchMode": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": "10",
            "ControlMaster": "auto",
            "ControlPath": str(self.folder / "ctl"),
            "ControlPersist": "600",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ("-F", "none", *words, "root@127.0.0.1")

    def boot(self) -> float:
        """Start on a fresh overlay and wait until it answers; returns the seconds taken.

        Raises:
            VmError: QEMU is not installed, ended, or the machine does not answer.
        """
        if self.pid is not None:
            raise VmError(f"a machine already runs in {self.folder} (process {self.pid})")
        if shutil.which(self._emulator.command[0]) is None:
            raise VmError(f"needs {self._emulator.command[0]}: packaging/apt-install vm")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "port").write_text(str(_free_port()))
        with (self.folder / "inbox").open("wb") as inbox:
            inbox.truncate(INBOX_BYTES)
        overlay = str(self.folder / "disk.qcow2")
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(self.image.disk), overlay],
            check=True,
        )
        began_s = time.monotonic()
        with (self.folder / "qemu.log").open("wb") as log:
            process = subprocess.Popen(self._command(overlay), stdout=log, stderr=log, start_new_session=True)
        (self.folder / "pid").write_text(str(process.pid))
        self.wait(process)
        return time.monotonic() - began_s

    def _command(self, overlay: str) -> list[str]:
        port = (self.folder / "port").read_text()
        # KVM is off by default: on nested machines, /dev/kvm may exist and fail after a while.
        kvm = self._emulator.kvm and os.environ.get("PERPHD_VM_ACCEL", "tcg") == "kvm"
        fast = ["-accel", "kvm", "-cpu", "host"]
        emulated = ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", self._emulator.processor]
        shape = f"{self._cpus},sockets={self._sockets}"
        told = COMMAND_LINE if kvm else COMMAND_LINE + EMULATED
        return [
            *self._emulator.command,
            *(fast if kvm else emulated),
            *("-machine", "q35", "-smp", shape, "-m", str(self._memory_mb)),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd), "-append", told),
            *("-drive", f"file={overlay},if=none,id=disk,cache=unsafe,format=qcow2"),
            *("-device", "virtio-blk-pci,drive=disk"),
            *("-drive", f"file={self.folder / 'inbox'},if=none,id=inbox,format=raw,readonly=on"),
            *("-device", "virtio-blk-pci,drive=inbox"),
            *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            *("-chardev", f"file,id=console,path={self.folder / 'console'}", "-serial", "chardev:console"),
            *("-monitor", f"unix:{self.folder / 'monitor'},server=on,wait=off"),
        ]

    def wait(self, process: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until it answers.

        Raises:
            VmError: QEMU ended, or there is no answer in time.
        """
        end_s, patience_s = time.monotonic() + BOOT_S, 3
        while time.monotonic() < end_s:
            if process is not None and process.poll() is not None:
                raise VmError(f"QEMU ended: {(self.folder / 'qemu.log').read_text()[-1000:]}")
            # Use short time-outs at first: a connection attempt before the machine listens is answered late or never.
            if self._answers(patience_s):
                return
            patience_s = min(patience_s + 1, 10)
            time.sleep(0.3)
        console = (self.folder / "console").read_text(errors="replace")[-1500:]
        raise VmError(f"no answer within {BOOT_S:.0f} s; the console's end:\n{console}")

    def run(
        self, command: str, stdin: bytes = b"", timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a shell command in the machine as root."""
        if stdin:
            words = ["ssh", *self.ssh, command]
            return subprocess.run(words, input=stdin, capture_output=True, timeout=timeout_s, check=False)
        if self._shell is None:
            self._shell = Shell(self.ssh)
        try:
            return self._shell.run(command, timeout_s)
        except ShellEnded:
            self._forget_shell()
            return subprocess.CompletedProcess(command, 255, b"", b"the connection ended")
        except subprocess.TimeoutExpired:
            self._forget_shell()
            raise

    def _forget_shell(self) -> None:
        if self._shell is not None:
            self._shell.close()
        self._shell = None

    def _answers(self, patience_s: int) -> bool:
        words = ["ssh", "-o", f"ConnectTimeout={patience_s}", *self.ssh, "true"]
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(words, capture_output=True, timeout=20.0, check=False).returncode == 0
        return False

    def put(self, source: Path, target: str) -> None:
        """Copy a file or a folder into this folder of the machine."""
        command = ["tar", "-C", str(source.parent), "--exclude=__pycache__", "-cf", "-", source.name]
        self.unpack(subprocess.run(command, capture_output=True, check=True).stdout, target)

    def unpack(self, packed: bytes, target: str) -> None:
        """Unpack a tar archive into this folder of the machine.

        It is transferred by a disk instead of ssh, because emulated processors decrypt only a few MB per second.

        Raises:
            VmError: it is too big, or tar there failed.
        """
        if len(packed) > INBOX_BYTES:
            raise VmError(f"{len(packed)} bytes exceed the limit of one transfer ({INBOX_BYTES})")
        with (self.folder / "inbox").open("r+b") as inbox:
            inbox.write(packed)
        folder = shlex.quote(target)
        # The flush makes the machine read the disk again instead of its cache.
        command = f"mkdir -p {folder} && blockdev --flushbufs /dev/vdb && tar -C {folder} --no-same-owner -xf /dev/vdb"
        done = self.run(command)
        if done.returncode:
            raise VmError(f"{target} was not unpacked: {done.stderr.decode()}")

    def reset(self) -> None:
        """Press the reset button, without unmounting or stopping anything first. Returns when it answers again."""
        before = self.run("cat /proc/sys/kernel/random/boot_id").stdout
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self.folder / "monitor"))
            monitor.recv(4096)
            monitor.sendall(b"system_reset\n")
            time.sleep(0.2)
        self.wait_for_another_boot(before)

    def reboot(self) -> None:
        """Reboot as an operator would. Returns when it answers again."""
        before = self.run("cat /proc/sys/kernel/random/boot_id").stdout
        self.run("systemctl reboot")
        self.wait_for_another_boot(before)

    def wait_for_another_boot(self, before: bytes) -> None:
        """Wait until it answers with another boot's identity."""
        self._forget_connection()
        end_s = time.monotonic() + BOOT_S
        while time.monotonic() < end_s:
            self.wait()
            if self.run("cat /proc/sys/kernel/random/boot_id").stdout not in (before, b""):
                return
            self._forget_connection()
            time.sleep(0.5)
        raise VmError(f"the machine did not boot again within {BOOT_S:.0f} s")

    def _forget_connection(self) -> None:
        self._forget_shell()
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["ssh", *self.ssh, "-O", "exit"], capture_output=True, timeout=10, check=False)
        (self.folder / "ctl").unlink(missing_ok=True)

    def stop(self) -> None:
        """End it and delete its disk. Stopping twice is allowed."""
        if (pid := self.pid) is not None:
            self._forget_connection()
            os.kill(pid, signal.SIGTERM)
            for _ in range(100):
                if self.pid is None or _is_zombie(pid):
                    break
                time.sleep(0.1)
            else:
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            if pid is not None:
                os.waitpid(pid, 0)
        (self.folder / "disk.qcow2").unlink(missing_ok=True)
        (self.folder / "inbox").unlink(missing_ok=True)
        (self.folder / "pid").unlink(missing_ok=True)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
