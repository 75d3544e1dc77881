"""Checkpoints of a simulated fleet: a killed run continues from its last checkpoint, with the same results.

A checkpoint file has a header of four lines, followed by the pickled simulator as it was between two cycles:

    perphd fleet checkpoint 1
    code       sha256 of the sources of perphd and the versions of Python and numpy
    run        sha256 of the workload and settings that the caller passes to ``run_of``
    content    sha256 of the pickled simulator

A checkpoint made by other code or by another run is refused, because the simulation would continue differently. A
damaged file is refused as well. The file is replaced atomically, so that a run killed while it writes leaves the
previous checkpoint intact.

Unpickling can execute arbitrary code from the file, and no checksum prevents that. Therefore only a regular file is
read that belongs to this user and that nobody else may write.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

import perphd
from perphd.domain.errors import PerphError
from perphd.host.state_files import replace_text
from perphd.sim.cluster.simulator import FleetSimulator

FORMAT: Final = "perphd fleet checkpoint 1"
_HEAD_BYTES: Final = 512
log = logging.getLogger("perphd.sim")


class CheckpointRefused(PerphError):
    """A checkpoint cannot be used. The message gives the path and the reason."""


class Checkpoints:
    """The checkpoint of one run, in one file.

    Args:
        path: the checkpoint file.
        run: digest of workload and settings, from ``run_of``.
        every_s: virtual time between two checkpoints, in seconds.
    """

    def __init__(self, path: Path, run: str, every_s: float) -> None:
        self._path, self._run, self._every_s = path, run, every_s
        self._due_s: float | None = None

    def load(self) -> FleetSimulator | None:
        """The saved simulator; None if there is no checkpoint file.

        Raises:
            CheckpointRefused: other code or another run made the checkpoint, it is damaged or unreadable, or
                somebody else may have written it.
        """
        try:
            data = self._read()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise CheckpointRefused(f"{self._path}: cannot be read: {exc.strerror}") from exc
        lines = data[:_HEAD_BYTES].split(b"\n", 4)
        if len(lines) < 5 or lines[0] != FORMAT.encode():
            raise self._refused(f"it does not begin with {FORMAT!r}")
        code, run, content = (line.decode(errors="replace") for line in lines[1:4])
        body = data[sum(len(line) + 1 for line in lines[:4]) :]
        if hashlib.sha256(body).hexdigest() != content:
            raise self._refused("it is damaged: its content does not match its checksum")
        if code != code_digest():
            raise self._refused("another version of perphd, Python or numpy made it")
        if run != self._run:
            raise self._refused("it belongs to another run: workload or settings differ")
        found = pickle.loads(body)
        if not isinstance(found, FleetSimulator):
            raise self._refused("its content is not a fleet simulator")
        return found

    def after_cycle(self, simulator: FleetSimulator) -> None:
        """Save the simulator if ``every_s`` has passed since the last time. ``FleetSimulator.run`` calls this method
        after each cycle.

        If a checkpoint cannot be written, a warning is logged and the run goes on. The next one is tried on time.
        """
        if self._due_s is None:
            self._due_s = simulator.now_s + self._every_s
        if simulator.now_s >= self._due_s:
            try:
                self.save(simulator)
            except PerphError as exc:
                log.warning("no checkpoint at %.2f h: %s", simulator.now_s / 3600.0, exc)
            self._due_s = simulator.now_s + self._every_s

    def save(self, simulator: FleetSimulator) -> None:
        """Replace the checkpoint.

        Raises:
            ConfigError: it cannot be written. The previous checkpoint is unchanged.
        """
        body = pickle.dumps(simulator, protocol=pickle.HIGHEST_PROTOCOL)
        head = "\n".join((FORMAT, code_digest(), self._run, hashlib.sha256(body).hexdigest(), ""))
        replace_text(self._path, head.encode() + body, 0o600)

    def _read(self) -> bytes:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
                raise self._refused("it must be a file of this user that nobody else may write")
            return file.read()

    def _refused(self, why: str) -> CheckpointRefused:
        return CheckpointRefused(f"{self._path}: not used: {why}")


def run_of(parts: Iterable[object]) -> str:
    """The digest of a run's workload and settings.

    ``parts``: values whose ``repr`` together must show everything that affects the results.
    """
    found = hashlib.sha256()
    for each in parts:
        found.update(f"{each!r}\n".encode())
    return found.hexdigest()


@functools.cache
def code_digest() -> str:
    """The digest of perphd's sources and of the versions of Python and numpy."""
    found = hashlib.sha256(f"{sys.version} {np.__version__}\n".encode())
    root = Path(perphd.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
