"""Operators' requests: who asked for a change, and pauses of perphd's control."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Actor:
    """The process that asked for a change, as the kernel identified it.

    ``pid`` 0: the request was a signal. ``command``: its command line, shortened; empty if the process ended
    before it could be read.
    """

    user: str
    uid: int
    pid: int
    command: str = ""

    def __str__(self) -> str:
        process = f"pid {self.pid}" if self.pid else "a signal"
        return f"{self.user} (uid {self.uid}, {process}{f': {self.command}' if self.command else ''})"


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which perphd changes no settings of a workload (empty name: of any workload).

    Times are seconds since the epoch, because a pause outlives restarts. ``until_unix_s`` None: the pause lasts
    until an operator calls ``resume``.
    """

    workload: str
    since_unix_s: float
    until_unix_s: float | None
    reason: str
    by: str

    def holds(self, now_unix_s: float) -> bool:
        """True while the pause lasts."""
        return self.until_unix_s is None or now_unix_s < self.until_unix_s

    def covers(self, workload: str, declaration: str | None) -> bool:
        """True if the pause applies to every workload, to this one, or to the declaration that matched it."""
        return self.workload in ("", workload, declaration)
