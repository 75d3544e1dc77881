"""The environment file in which workers of an elastic job find how many of them run now.

    PERPHD_SLOTS=3          workers that run; those that stand still do not count
    PERPHD_SLOTS_LEAST=1    the core
    PERPHD_SLOTS_MOST=6

Everybody may read it. It is replaced as a whole, and removed when no worker is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from perphd.batch.gangs import gang_of, slots_of
from perphd.batch.job import QueuedJob
from perphd.host.state_files import replace_readable


class QueueSlots:
    """The files of all elastic jobs. ``folder`` None: there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._written: dict[int, str] = {}
        self.problem = ""

    def path(self, gang: int) -> str:
        """Where the workers of this elastic job read; empty: nowhere."""
        return "" if self._folder is None else str(self._folder / f"{gang}.env")

    def environment(self, job: QueuedJob) -> tuple[tuple[str, str], ...]:
        """What a worker is told at its start."""
        gang = gang_of(job)
        return () if gang is None or self._folder is None else (("PERPHD_SLOTS_FILE", self.path(gang)),)

    def write(self, live: Sequence[QueuedJob]) -> None:
        """Bring the files up to date; blocks. A file that cannot be written is a problem, not an error."""
        if self._folder is None:
            return
        wanted = {
            gang: f"PERPHD_SLOTS={slots.granted}\nPERPHD_SLOTS_LEAST={slots.least}\nPERPHD_SLOTS_MOST={slots.most}\n"
            for gang, slots in slots_of(live).items()
        }
        self.problem = ""
        try:
            for gang, text in wanted.items():
                if self._written.get(gang) != text:
                    replace_readable(Path(self.path(gang)), text)
        except OSError as exc:
            self.problem = f"{exc.filename}: slots cannot be told to workers: {exc.strerror}"
            return
        for gang in self._written.keys() - wanted.keys():
            with contextlib.suppress(OSError):
                os.unlink(self.path(gang))
        self._written = wanted
