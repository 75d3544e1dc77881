"""Environment files with the number of running workers of each elastic job.

    PERPHD_SLOTS=3          workers that run; frozen ones do not count
    PERPHD_SLOTS_LEAST=1    the job's minimum number of workers (its core)
    PERPHD_SLOTS_MOST=6     the job's maximum number of workers

The file is world-readable. It is replaced atomically, and removed when no worker is left.
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
        """The file for the workers of this elastic job; empty if there is none."""
        return "" if self._folder is None else str(self._folder / f"{gang}.env")

    def environment(self, job: QueuedJob) -> tuple[tuple[str, str], ...]:
        """The variables that a worker gets at start."""
        gang = gang_of(job)
        return () if gang is None or self._folder is None else (("PERPHD_SLOTS_FILE", self.path(gang)),)

    def write(self, live: Sequence[QueuedJob]) -> None:
        """Update the files; blocks. A failed write is reported as a problem, not raised."""
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
            self.problem = f"{exc.filename}: the slots of workers cannot be written: {exc.strerror}"
            return
        for gang in self._written.keys() - wanted.keys():
            with contextlib.suppress(OSError):
                os.unlink(self.path(gang))
        self._written = wanted
