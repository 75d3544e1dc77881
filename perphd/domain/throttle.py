"""What a level of memory bandwidth throttling (MBA) really lets through: measured curves, and where they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ThrottleSource(StrEnum):
    """What is known of the throttle levels of a host."""

    CALIBRATED = "calibrated"  # measured on this machine: bytes per second are known
    SHIPPED = (
        "shipped default"  # known of this CPU family: levels that are the same as another one are left out
    )
    NOMINAL = "nominal"  # nothing is known: per cents as the hardware names them


@dataclass(frozen=True, slots=True)
class ThrottleCurve:
    """Bytes per second that ``cores`` streaming cores of an L3 domain get at each level (%), ascending."""

    domain: int
    cores: int
    points: tuple[tuple[int, float], ...]

    def at(self, level: int) -> float | None:
        """Bytes per second at a level; None for one that is no step of this host."""
        return next((bytes_per_s for pct, bytes_per_s in self.points if pct == level), None)


def curve_for(curves: Iterable[ThrottleCurve], domain: int, cores: float) -> ThrottleCurve | None:
    """The domain's curve for the number of cores nearest to this; of two as near the one of fewer."""
    mine = [curve for curve in curves if curve.domain == domain]
    return min(mine, key=lambda curve: (abs(curve.cores - cores), curve.cores), default=None)
