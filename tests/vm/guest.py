"""A booted machine as the tests see it: commands that must succeed, files, patience."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tools.vm.machine import Machine

INSTALL_S = 1200.0


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
