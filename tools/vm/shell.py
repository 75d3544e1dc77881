"""A persistent shell in the machine, because a login takes longer than most commands."""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import subprocess
import time
from collections.abc import Sequence

SPARED = "NPY_DISABLE_CPU_FEATURES=AVX2,FMA3"
"""CPU features that numpy must not use. QEMU 7.2 emulates some of these instructions wrongly: Debian 12's numpy 1.24
dies of SIGSEGV when it adds two arrays. Real processors run the same code correctly. Without the features in the
emulated processor itself, apt is killed by SIGILL.
"""


class ShellEnded(Exception):
    """The connection or the shell ended before the command did."""


class Shell:
    """Runs commands in the machine one after the other, each in a subshell with empty input."""

    def __init__(self, ssh: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            ["ssh", *ssh, f"export {SPARED}; exec bash --norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # A random mark, so that no output of a command looks like its end.
        self._mark = f"\nend-{secrets.token_hex(8)} ".encode()

    def run(self, command: str, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        """Run a command like ``ssh MACHINE COMMAND``.

        Raises:
            ShellEnded: the shell cannot be used any more.
            subprocess.TimeoutExpired: the command took too long; the shell cannot be used any more.
        """
        assert self._process.stdin is not None
        mark = shlex.quote(self._mark.decode())
        asked = (
            f"( eval {shlex.quote(command)} ) < /dev/null; "
            f'status=$?; printf %s {mark}"$status." >&1; printf %s {mark}"$status." >&2\n'
        )
        try:
            self._process.stdin.write(asked.encode())
            self._process.stdin.flush()
        except OSError as exc:
            raise ShellEnded from exc
        out, err = self._read(command, time.monotonic() + timeout_s, timeout_s)
        said, _, status = out.rpartition(self._mark)
        return subprocess.CompletedProcess(command, int(status[:-1]), said, err.rpartition(self._mark)[0])

    def _read(self, command: str, end_s: float, timeout_s: float) -> tuple[bytes, bytes]:
        """Read both streams, up to the mark and the text after it."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        said = {self._process.stdout.fileno(): b"", self._process.stderr.fileno(): b""}
        with selectors.DefaultSelector() as selector:
            for stream in said:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, end_s - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(command, timeout_s)
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 16)
                    if not piece:
                        raise ShellEnded
                    said[key.fd] += piece
                    # The mark and the status fit into these bytes.
                    if self._mark in said[key.fd][-len(self._mark) - 8 :] and piece.endswith(b"."):
                        selector.unregister(key.fd)
        out, err = said.values()
        return out, err

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
