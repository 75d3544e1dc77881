"""A booted machine as the tests see it: its start, commands that must succeed, files, patience."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools.vm.image import image
from tools.vm.machine import Emulator, Machine
from tools.vm.making import VmError

ROOT = Path(__file__).parents[2]
INSTALL_S = 1200.0
KEEP = "PERPHD_VM_KEEP" in os.environ
"""For work on these tests: the machine and what is installed on it outlive the run, and serve the next."""


@contextmanager
def booted(
    name: str,
    extra: str = "",
    *,
    reused: bool = False,
    emulator: Callable[[Path], Emulator] | None = None,
    **shape: Any,
) -> Iterator[Machine]:
    """A machine of the release PERPHD_VM_SUITE, ended afterwards. Without one the test skips and says what it lacks.

    ``name``: of its folder; ``extra``: a Debian package that its image has besides; ``reused``: with KEEP,
    one that an earlier run has left serves as well; ``shape``: as ``Machine`` has it.
    """
    suite = os.environ.get("PERPHD_VM_SUITE")
    if not suite:
        pytest.skip("needs a machine that it may install on and reboot: make test-vm")
    out = Path(os.environ.get("PERPHD_VM_OUT", ROOT / "out/vm")).resolve()
    try:
        made = None if emulator is None else emulator(out)
        machine = Machine(image(suite, out, extra), out / f"{name}-{suite}", emulator=made, **shape)
    except VmError as exc:
        pytest.skip(f"no virtual machine: {exc}")
    if KEEP and reused and machine.pid is not None:
        yield machine
        return
    machine.stop()
    try:
        machine.boot()
        yield machine
    finally:
        if not KEEP:
            machine.stop()


def package() -> Path:
    """The newest package for that release (PERPHD_DEB names another). Without one the test skips."""
    folders = (ROOT / "out/deb" / os.environ.get("PERPHD_VM_SUITE", ""), ROOT / "out/deb")
    found = next((debs for folder in folders if (debs := list(folder.glob("perphd_*.deb")))), [])
    if "PERPHD_DEB" not in os.environ and not found:
        pytest.skip("no package: make deb")
    named = os.environ.get("PERPHD_DEB")
    return Path(named) if named else max(found, key=lambda path: path.stat().st_mtime)


class Vm:
    """A booted machine that may be spoilt, with a package of this checkout at hand."""

    def __init__(self, machine: Machine, package: Path) -> None:
        self.machine, self.package = machine, package

    def try_(self, command: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        done = self.machine.run(command, timeout_s=timeout_s)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return subprocess.CompletedProcess(command, done.returncode, out, err)

    def sh(self, command: str, timeout_s: float = 300.0) -> str:
        done = self.try_(command, timeout_s)
        assert done.returncode == 0, f"{command}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = shlex.quote(path)
        self.sh(f"printf %s {shlex.quote(text)} > {target} && chmod {mode:o} {target}")

    def be_patient(self, *lines: str) -> None:
        """Before the package is there: nothing of the daemon fails because processors are emulated, on a busy host."""
        self.sh("mkdir -p /etc/systemd/system/perphd.service.d")
        said = "\n".join(("[Service]", "TimeoutStartSec=300s", "TimeoutStopSec=120s", *lines, ""))
        self.write("/etc/systemd/system/perphd.service.d/slow.conf", said)

    def wait_until(self, condition: str, what: str, patience_s: float = 240.0, pause_s: float = 0.4) -> None:
        """Until this shell command succeeds there. Asked there as well: each visit takes time from what is awaited."""
        asked = f"until {condition}; do sleep {pause_s}; done"
        done = self.machine.run(
            f"timeout {patience_s:.0f} sh -c {shlex.quote(asked)}", timeout_s=patience_s + 60.0
        )
        if done.returncode:
            log = self.try_("journalctl -u perphd -n 30 --no-pager").stdout
            raise AssertionError(f"{what}: {condition}\n{done.stderr.decode(errors='replace')}\n{log}")

    def wait_for(self, done: Callable[[], object], what: str, patience_s: float = 240.0) -> None:
        end_s = time.monotonic() + patience_s
        while not done():
            log = (
                "" if time.monotonic() < end_s else self.try_("journalctl -u perphd -n 30 --no-pager").stdout
            )
            assert time.monotonic() < end_s, f"{what}\n{log}"
            time.sleep(0.5)


def ticked(times: int) -> str:
    """A shell condition: the daemon has decided more often than this since its start."""
    said = "$(perphctl status -v | sed -n 's/^policy.*\\btick \\([0-9]*\\),.*/\\1/p')"
    return f'[ "{said}" -gt {times} ]'
