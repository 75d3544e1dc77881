"""The machine with a PMU under QEMU: booted in seconds, driven through its serial console and a shared folder.

QEMU emulates a Cortex-A72 with -icount: every instruction takes 4 ns of the machine's time and a cycle 1 ns, regardless
of the host's load. The true values are therefore known: 250 MIPS and a CPI of 4 for every core second. All CPUs share
one host thread, which determines the machine's speed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from tools.pmu.image import PmuImage
from tools.vm.making import VmError

BOOT_S: Final = 300.0
COMMAND_S: Final = 600.0
ICOUNT: Final = "shift=2,align=off,sleep=off"
PROGRAM: Final = "qemu-system-aarch64"
SOURCES: Final = ("perphd", "rdt", "profiles", "tests/pmu")


class PmuMachine:
    """One machine, whose files are in ``folder``."""

    def __init__(self, image: PmuImage, folder: Path, cpus: int = 2) -> None:
        self._image, self.folder, self._cpus = image, folder, cpus
        self.share = folder / "share"
        self._console: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """QEMU's process id, if it runs."""
        try:
            pid = int((self.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.folder / "console.sock") in command else None

    def boot(self, root: Path) -> float:
        """Start it with the sources below ``root``; returns the seconds until it answered.

        Raises:
            VmError: QEMU is not installed, ended, or the machine does not answer.
        """
        if shutil.which(PROGRAM) is None:
            raise VmError(f"needs {PROGRAM}: packaging/apt-install pmu")
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in SOURCES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / name, self.share / "src" / name, ignore=ignored)
        began_s = time.monotonic()
        with (self.folder / "qemu.log").open("wb") as log:
            process = subprocess.Popen(self._command(), stdout=log, stderr=log, start_new_session=True)
        (self.folder / "pid").write_text(str(process.pid))
        told = self.folder / "console"
        while time.monotonic() < began_s + BOOT_S:
            if process.poll() is not None:
                raise VmError(f"QEMU ended: {(self.folder / 'qemu.log').read_text()[-1000:]}")
            if told.exists() and b"READY" in told.read_bytes():
                return time.monotonic() - began_s
            time.sleep(0.2)
        end = told.read_text(errors="replace")[-1500:] if told.exists() else ""
        self.stop()
        raise VmError(f"no answer within {BOOT_S:.0f} s; the console's end:\n{end}")

    def _command(self) -> list[str]:
        told = "console=ttyAMA0 panic=-1 loglevel=4 psi=1 cryptomgr.notests"
        return [
            *(PROGRAM, "-machine", "virt,gic-version=3", "-cpu", "cortex-a72"),
            *("-smp", str(self._cpus), "-m", "2048"),
            *("-accel", "tcg,thread=single,tb-size=256", "-icount", ICOUNT),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd), "-append", told),
            *("-fsdev", f"local,id=lab,path={self.share},security_model=none,multidevs=remap"),
            *("-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            "-chardev",
            f"socket,id=con,path={self.folder / 'console.sock'},server=on,wait=off,logfile={self.folder / 'console'}",
            *("-serial", "chardev:con"),
        ]

    def run(self, command: str, timeout_s: float = COMMAND_S) -> str:
        """Run a shell command there as root and return its output.

        Raises:
            VmError: it fails, or does not end in time.
        """
        mark = uuid.uuid4().hex[:8]
        script, output = self.share / f"cmd.{mark}", self.share / f"out.{mark}"
        script.write_text(command + "\n")
        console = self._connected()
        # The console echoes the line, so the awaited mark must not appear in it literally.
        line = f'\nsh /lab/cmd.{mark} > /lab/out.{mark} 2>&1; echo RC"="{mark}=$?.\n'
        console.sendall(line.encode())
        seen, status = b"", b""
        done, end_s = f"RC={mark}=".encode(), time.monotonic() + timeout_s
        while b"." not in status and time.monotonic() < end_s:
            with suppress(TimeoutError):
                if not (more := console.recv(65536)):
                    raise VmError(f"the machine ended during: {command}")
                seen += more
            status = seen.partition(done)[2]
        if b"." not in status:
            said = output.read_text(errors="replace")[-1500:] if output.exists() else ""
            raise VmError(f"{command!r} did not end within {timeout_s:.0f} s; its output:\n{said}")
        text = output.read_text(errors="replace")
        script.unlink()
        output.unlink()
        code = status.split(b".")[0].decode()
        if code != "0":
            raise VmError(f"{command!r} ended with {code}:\n{text[-3000:]}")
        return text

    def _connected(self) -> socket.socket:
        if self._console is None:
            self._console = socket.socket(socket.AF_UNIX)
            self._console.connect(str(self.folder / "console.sock"))
            self._console.settimeout(1.0)
        return self._console

    def stop(self) -> None:
        """End it. Stopping twice is allowed."""
        if self._console is not None:
            self._console.close()
            self._console = None
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if self.pid is None:
                return
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
