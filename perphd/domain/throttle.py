"""Memory bandwidth at each throttle level (MBA), and the origin of these figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class ThrottleSource(StrEnum):
    """Origin of a host's throttle levels."""

    CALIBRATED = "calibrated"  # measured on this machine: bytes per second are known
    SHIPPED = (
        "shipped default"  # known for this CPU family: levels without an effect of their own are left out
    )
    NOMINAL = "nominal"  # unknown: percentages as the hardware names them


@dataclass(frozen=True, slots=True)
class ThrottleCurve:
    """Bytes per second that ``cores`` streaming cores of an L3 domain get at each level (%), ascending."""

    domain: int
    cores: int
    points: tuple[tuple[int, float], ...]

    def at(self, level: int) -> float | None:
        """Bytes per second at a level; None if this host has no such level."""
        return next((bytes_per_s for pct, bytes_per_s in self.points if pct == level), None)


def curve_for(curves: Iterable[ThrottleCurve], domain: int, cores: float) -> ThrottleCurve | None:
    """The domain's curve for the nearest number of cores; on a tie, for fewer cores."""
    mine = [curve for curve in curves if curve.domain == domain]
    return min(mine, key=lambda curve: (abs(curve.cores - cores), curve.cores), default=None)


def whole_bandwidth(curves: Iterable[ThrottleCurve], cores: Mapping[int, int]) -> float | None:
    """The host's calibrated memory bandwidth in bytes per second; None unless every L3 domain was measured.

    ``cores``: physical cores by L3 domain. A measurement with fewer than half of a domain's cores does not count,
    because they may not fill its memory channels.
    """
    most: dict[int, float] = {}
    for curve in curves:
        unthrottled = curve.at(100)
        if unthrottled is not None and 2 * curve.cores >= cores.get(curve.domain, 0):
            most[curve.domain] = max(most.get(curve.domain, 0.0), unthrottled)
    return sum(most.values()) if cores and most.keys() >= cores.keys() else None
