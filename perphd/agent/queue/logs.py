"""The output of jobs without their own output file: one file per attempt, limited in size."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 16 << 20
"""Size in bytes above which the first half of a log is removed, so that jobs cannot fill the disk."""
PART_BYTES: Final = 64 << 10


class QueueLogs:
    """Log files in one folder that only root can enter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Create the folder."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def greatest(self) -> int:
        """Greatest number of a job that has a log; 0 without logs."""
        numbers = (path.name.partition("-")[0] for path in self._folder.glob("*-*.log"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def path(self, number: int, attempt: int) -> str:
        """The file for the output of an attempt."""
        return str(self._folder.absolute() / f"{number}-{attempt}.log")

    def read(self, number: int, attempt: int, offset: int) -> tuple[bytes, int]:
        """The next part of a log from ``offset`` on, and the offset after it. Empty if there is no log."""
        try:
            with open(self.path(number, attempt), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))  # it may have lost its first half
                part = file.read(PART_BYTES)
                return part, file.tell()
        except FileNotFoundError:
            return b"", 0

    def trim(self, running: Sequence[tuple[int, int]]) -> None:
        """Remove the first half of logs that have grown too long."""
        for number, attempt in running:
            with contextlib.suppress(OSError):
                path = self.path(number, attempt)
                if os.stat(path).st_size > MOST_BYTES:
                    _halve(path)

    def remove(self, number: int) -> None:
        """Remove the logs of all attempts of a job."""
        for path in self._folder.glob(f"{number}-*.log"):
            path.unlink(missing_ok=True)


def _halve(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(-(MOST_BYTES // 2), os.SEEK_END)
        kept = file.read(MOST_BYTES // 2)
        file.truncate(0)
    with open(path, "ab") as file:  # the job may append to the file at the same time
        file.write(b"[perphd: earlier output was dropped]\n" + kept)
