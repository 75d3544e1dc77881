"""Fields of /proc/PID/stat, and of its threads (proc_pid_stat(5))."""

from __future__ import annotations

from typing import Final

from perphd.host.fs import KernelFs, text_or_empty

STATE: Final = 0
USER_TICKS: Final = 11
SYSTEM_TICKS: Final = 12
START_TICKS: Final = 19
PROCESSOR: Final = 36
BLOCK_TICKS: Final = 39
"""Indices of ``stat_fields``: field number of the manual page less 3."""


def stat_fields(fs: KernelFs, pid: int, tid: int | None = None) -> list[str]:
    """The fields after the command, of a process or of one of its threads; empty if it has ended."""
    task = "" if tid is None else f"/task/{tid}"
    return text_or_empty(fs, f"/proc/{pid}{task}/stat").rpartition(")")[2].split()


def start_ticks(fs: KernelFs, pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is no such process.

    It identifies a process together with the process id, since ids are reused.
    """
    try:
        return int(stat_fields(fs, pid)[START_TICKS])
    except (ValueError, IndexError):
        return None
