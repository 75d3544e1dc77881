"""Readings: a number, or the reason why there is none. A missing value is never shown as 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from rdt.frozen import FrozenDict
from rdt.names import GroupRef


class Why(Enum):
    """Reason why there is no number."""

    UNTRACKED = "untracked"
    """The kernel says ``Unavailable``: the hardware does not count this group now, or not yet.

    AMD has fewer counters than RMIDs. A later count restarts from 0.
    """
    UNASSIGNED = "unassigned"
    """The kernel says ``Unassigned``: no counter is assigned to this event (``mbm_assign_mode``)."""
    HARDWARE_ERROR = "hardware error"
    """The kernel says ``Error``: the hardware refused the RMID or the event."""
    UNSUPPORTED = "unsupported"
    """This machine or kernel does not count this event."""
    OFFLINE = "offline"
    """The domain is offline, with all its CPUs."""
    GONE = "gone"
    """The group does not exist now."""
    UNREADABLE = "unreadable"
    """Reading failed, or the content is not a number."""
    FIRST = "first"
    """This is the first reading of a counter; a rate needs two."""
    RESTARTED = "restarted"
    """Since the last reading the counter restarted, or lost the count of a removed monitor group."""
    UNCALIBRATED = "uncalibrated"
    """The bandwidth of this level was not measured (``rdt.calibrate``)."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A missing number, with the reason. Arithmetic with it raises TypeError by design.

    Test with isinstance, because the number 0 also counts as false.
    """

    why: Why
    reason: str

    def __str__(self) -> str:
        return self.reason


Reading: TypeAlias = float | Unavailable
"""A number, or the reason why there is none."""


def total(readings: Mapping[int, Reading]) -> Reading:
    """The sum over domains; Unavailable if any of them is, because a partial sum would mislead."""
    if not readings:
        return Unavailable(Why.UNSUPPORTED, "this machine counts nothing for the group")
    added = 0.0
    for domain, reading in readings.items():
        if isinstance(reading, Unavailable):
            return Unavailable(reading.why, f"domain {domain}: {reading.reason}")
        added += reading
    return added


@dataclass(frozen=True, slots=True)
class DomainReading:
    """One group in one L3 domain. Bandwidths are means over the interval since the previous reading."""

    occupancy_bytes: Reading
    total_bytes_per_s: Reading
    local_bytes_per_s: Reading
    """The part of the total that went to this socket's own memory."""
    total_bytes: Reading
    """Value of the counter, which starts when the group is made."""
    local_bytes: Reading

    @property
    def remote_bytes_per_s(self) -> Reading:
        """The part of the total that went to other sockets' memory."""
        if isinstance(self.total_bytes_per_s, Unavailable):
            return self.total_bytes_per_s
        if isinstance(self.local_bytes_per_s, Unavailable):
            return self.local_bytes_per_s
        return max(0.0, self.total_bytes_per_s - self.local_bytes_per_s)  # read one after the other


@dataclass(frozen=True, slots=True)
class GroupReading:
    """One group in all domains."""

    group: GroupRef
    time_s: float
    """Time of reading, by the monitor's clock."""
    interval_s: Reading
    """Length in seconds of the interval over which the bandwidths are means."""
    domains: FrozenDict[int, DomainReading]

    @property
    def occupancy_bytes(self) -> Reading:
        """Sum over all domains."""
        return total({domain: each.occupancy_bytes for domain, each in self.domains.items()})

    @property
    def total_bytes_per_s(self) -> Reading:
        """Sum over all domains, local and remote."""
        return total({domain: each.total_bytes_per_s for domain, each in self.domains.items()})

    @property
    def local_bytes_per_s(self) -> Reading:
        """Sum over all domains."""
        return total({domain: each.local_bytes_per_s for domain, each in self.domains.items()})
