"""Resource use of a process and the size of its files, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perphd.predictor.files import ASIDE

_COUNTED = ("originals.", "perphd.db")
_TICK_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading. ``churned_s``: completed part of the plan of arrivals and departures; a host that is too busy may
    fall behind it. ``cpu_s``: user and system time since the start; ``blocks``: pieces of memory that Python's objects
    occupy (``sys.getallocatedblocks``).

    Of the state directory: ``journal_bytes`` (without its copy), ``store_bytes`` with its log, ``aside_files`` (models
    that were put aside), ``other_bytes`` (all but these three), ``state_files`` (number of files, without those put
    aside).
    """

    at_s: float
    churned_s: float
    open_fds: float
    rss_bytes: float
    blocks: float
    threads: float
    cpu_s: float
    journal_bytes: float
    store_bytes: float
    other_bytes: float
    other_files: float
    state_files: float
    aside_files: float

    @property
    def mean_file_bytes(self) -> float:
        """Mean size of the files of the state directory that are neither journal nor store nor put aside, mostly
        models.
        """
        return self.other_bytes / max(self.other_files, 1.0)


def read(pid: int, state: Path, at_s: float, churned_s: float, blocks: float) -> Reading:
    """Read a process and its state directory now. Raises OSError if the process has ended."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    stat = (process / "stat").read_text().rpartition(")")[2].split()
    sizes = dict(_sizes(state))
    others = [size for name, size in sizes.items() if not name.startswith(_COUNTED) and ASIDE not in name]
    return Reading(
        at_s=at_s,
        churned_s=churned_s,
        open_fds=len(os.listdir(process / "fd")),
        rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
        blocks=blocks,
        threads=int(status["Threads"]),
        cpu_s=(int(stat[11]) + int(stat[12])) / _TICK_HZ,
        journal_bytes=sizes.get("originals.jsonl", 0),
        store_bytes=sum(size for name, size in sizes.items() if name.startswith("perphd.db")),
        other_bytes=sum(others),
        other_files=len(others),
        state_files=sum(ASIDE not in name for name in sizes),
        aside_files=sum(ASIDE in name for name in sizes),
    )


def _sizes(state: Path) -> Iterable[tuple[str, int]]:
    for folder, _, names in os.walk(state):
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):  # gone meanwhile
                yield str(path.relative_to(state)), path.lstat().st_size
