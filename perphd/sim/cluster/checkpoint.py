"""Checkpoints of a simulated fleet: a run that was killed goes on from the last one, with the same results.

A checkpoint is the whole simulator between two cycles, pickled, after a head of four lines:

    perphd fleet checkpoint 1
    code       sha256 of the sources of perphd and the versions of Python and numpy
    run        sha256 of what is simulated: workload and settings, as the caller names them
    content    sha256 of what follows

State of other code, or of another run, is refused, since it would go on differently; so is a damaged file. A file is
replaced as a whole, so that a run that is killed while it writes leaves the one before.

To unpickle is to run what the file says, and no checksum helps against that. So only a regular file of this user that
nobody else may write is read.
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
    """A checkpoint cannot be used; says why."""


class Checkpoints:
    """The checkpoint of one run, in one file.

    Args:
        path: the file.
        run: what is simulated, by ``run_of``.
        every_s: virtual time between two checkpoints.
    """

    def __init__(self, path: Path, run: str, every_s: float) -> None:
        self._path, self._run, self._every_s = path, run, every_s
        self._due_s: float | None = None

    def load(self) -> FleetSimulator | None:
        """The simulator as it was; None without a checkpoint.

        Raises:
            CheckpointRefused: it is of other code or of another run, damaged, or somebody else may have written it.
        """
        try:
            data = self._read()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise CheckpointRefused(f"{self._path}: cannot be read: {exc.strerror}") from exc
        lines = data[:_HEAD_BYTES].split(b"\n", 4)
        if len(lines) < 5 or lines[0] != FORMAT.encode():
            raise self._refused("it is no checkpoint of a fleet")
        code, run, content = (line.decode(errors="replace") for line in lines[1:4])
        body = data[sum(len(line) + 1 for line in lines[:4]) :]
        if hashlib.sha256(body).hexdigest() != content:
            raise self._refused("it is damaged")
        if code != code_digest():
            raise self._refused("other code made it, which may go on differently")
        if run != self._run:
            raise self._refused("it is of another run: workload or settings differ")
        found = pickle.loads(body)
        if not isinstance(found, FleetSimulator):
            raise self._refused("it holds no simulator")
        return found

    def after_cycle(self, simulator: FleetSimulator) -> None:
        """Save the simulator when it is time; for ``FleetSimulator.run``.

        A checkpoint that cannot be written is a warning: the run goes on, and the next one is tried when it is due.
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
            ConfigError: it cannot be written; the one before is unchanged.
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
    """The digest of what is simulated: of the texts of these values, which must say all that matters."""
    found = hashlib.sha256()
    for each in parts:
        found.update(f"{each!r}\n".encode())
    return found.hexdigest()


@functools.cache
def code_digest() -> str:
    """The digest of the code that simulates."""
    found = hashlib.sha256(f"{sys.version} {np.__version__}\n".encode())
    root = Path(perphd.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
