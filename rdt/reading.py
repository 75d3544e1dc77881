"""A reading is a number, or says why there is none: never a silent 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from rdt.frozen import FrozenDict
from rdt.names import GroupRef


class Why(Enum):
    """Why there is no number."""

    UNTRACKED = "untracked"
    """The kernel says ``Unavailable``: the hardware does not count this group at the moment (AMD has fewer counters
    than RMIDs), or has not counted yet. What it counts later begins anew."""
    UNASSIGNED = "unassigned"
    """The kernel says ``Unassigned``: no counter was given to this event (``mbm_assign_mode``)."""
    HARDWARE_ERROR = "hardware error"
    """The kernel says ``Error``: the hardware refused the RMID or the event."""
    UNSUPPORTED = "unsupported"
    """This machine or kernel does not count this event."""
    OFFLINE = "offline"
    """The domain is not there now: all its CPUs are offline."""
    GONE = "gone"
    """The group is not there now."""
    UNREADABLE = "unreadable"
    """Reading failed, or gave what is no number."""
    FIRST = "first"
    """A rate needs two readings of one counter, and this is the first."""
    RESTARTED = "restarted"
    """The counter began anew, or lost what a removed monitor group had counted, since the last reading."""
    UNCALIBRATED = "uncalibrated"
    """Nobody has measured what this level delivers (``rdt.calibrate``)."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No number, and why. Arithmetic with it is a type error by design. Ask with isinstance: 0 is a number, too."""

    why: Why
    reason: str

    def __str__(self) -> str:
        return self.reason


Reading: TypeAlias = float | Unavailable
"""A number, or why there is none."""


def total(readings: Mapping[int, Reading]) -> Reading:
    """The sum over domains; Unavailable as soon as one of them is, because a part is not the whole."""
    if not readings:
        return Unavailable(Why.UNSUPPORTED, "nothing is counted here")
    added = 0.0
    for domain, reading in readings.items():
        if isinstance(reading, Unavailable):
            return Unavailable(reading.why, f"domain {domain}: {reading.reason}")
        added += reading
    return added


@dataclass(frozen=True, slots=True)
class DomainReading:
    """One group in one L3 domain. Bandwidths are means over the interval since the reading before."""

    occupancy_bytes: Reading
    total_bytes_per_s: Reading
    local_bytes_per_s: Reading
    """The part of the total that went to this socket's own memory."""
    total_bytes: Reading
    """The counter itself, since the group was made."""
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
    """When it was read, by the monitor's clock."""
    interval_s: Reading
    """What the bandwidths are means over."""
    domains: FrozenDict[int, DomainReading]

    @property
    def occupancy_bytes(self) -> Reading:
        """Over all domains."""
        return total({domain: each.occupancy_bytes for domain, each in self.domains.items()})

    @property
    def total_bytes_per_s(self) -> Reading:
        """Over all domains; local and remote."""
        return total({domain: each.total_bytes_per_s for domain, each in self.domains.items()})

    @property
    def local_bytes_per_s(self) -> Reading:
        """Over all domains."""
        return total({domain: each.local_bytes_per_s for domain, each in self.domains.items()})
