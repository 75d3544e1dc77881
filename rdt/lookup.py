"""From shares and bytes a second to bandwidth levels, and back: by measured curves where there are any.

Where nobody calibrated, the nominal level is used, and every answer says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rdt.curves import TOLERANCE, Calibration, Curve
from rdt.errors import Invalid
from rdt.info import BandwidthInfo
from rdt.reading import Reading, Unavailable, Why


@dataclass(frozen=True, slots=True)
class Level:
    """A level to write, and how much is known of it."""

    value: int
    calibrated: bool
    bytes_per_s: Reading
    """What it delivers to so many cores, where that was measured."""
    note: str = ""
    """For people: why it is not calibrated, or not what was asked for."""


class BandwidthLookup:
    """Levels for shares and for bytes a second, and back.

    Args:
        info: the resource.
        calibration: its curves; None where none were measured.
        machine: the CPU's model name, to know curves of another machine by (None: not checked).
        tolerance: see ``TOLERANCE``.
    """

    def __init__(
        self,
        info: BandwidthInfo,
        calibration: Calibration | None = None,
        *,
        machine: str | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        self._info, self._tolerance = info, tolerance
        misfit = ""
        if calibration is not None:
            misfit = calibration.misfit(info, calibration.machine if machine is None else machine)
        self._calibration = None if misfit else calibration
        self._why = f"not calibrated{': ' + misfit if misfit else ''}; the nominal level is used"

    def _curve(self, domain: int, cores: int) -> Curve | None:
        return self._calibration.curve(self._info.name, domain, cores) if self._calibration else None

    def calibrated(self, domain: int, cores: int) -> bool:
        """True if there is a curve for the domain."""
        return self._curve(domain, cores) is not None

    def levels(self, domain: int, cores: int) -> tuple[int, ...]:
        """Levels that make a difference, ascending; uncalibrated: all that there are (none where the range is open)."""
        curve = self._curve(domain, cores)
        if curve is None:
            return self._info.steps()
        return tuple(point.level for point in curve.useful(self._tolerance))

    def bandwidth(self, domain: int, cores: int, level: int) -> Reading:
        """Bytes a second that a level delivers to so many cores of a domain."""
        curve = self._curve(domain, cores)
        if curve is None:
            return Unavailable(Why.UNCALIBRATED, self._why)
        return curve.at(level)

    def for_bandwidth(self, domain: int, cores: int, bytes_per_s: float, *, at_most: bool = False) -> Level:
        """The level that delivers this much, or with ``at_most`` no more than this. Where the domain cannot, its
        highest (lowest) level, with a note; uncalibrated the highest: bytes a second mean nothing then.
        """
        curve = self._curve(domain, cores)
        if curve is None:
            return Level(self._info.unthrottled, False, Unavailable(Why.UNCALIBRATED, self._why), self._why)
        find = curve.at_most if at_most else curve.at_least
        point = find(bytes_per_s, self._tolerance)
        if point is not None:
            return Level(point.level, True, point.bytes_per_s)
        useful = curve.useful(self._tolerance)
        point = useful[0] if at_most else useful[-1]
        short = (
            "even the lowest level delivers more" if at_most else "the domain delivers less even unthrottled"
        )
        return Level(point.level, True, point.bytes_per_s, short)

    def for_share(self, domain: int, cores: int, share: float, *, at_most: bool = False) -> Level:
        """The level that delivers a share (0 to 1) of what these cores can move unthrottled. Uncalibrated, the
        nominal share: exact in name only. Raises Invalid for no share.
        """
        if not 0 <= share <= 1:
            raise Invalid(self._info.name, doing="asking of", value=str(share), reason="a share is 0 to 1")
        curve = self._curve(domain, cores)
        if curve is not None:
            return self.for_bandwidth(domain, cores, share * curve.top.bytes_per_s, at_most=at_most)
        step, full = self._info.granularity, self._info.unthrottled
        if not self._info.is_percent and share < 1:
            why = f"{self._why}: a share of {self._info.unit.value} values needs a calibration"
            return Level(full, False, Unavailable(Why.UNCALIBRATED, why), why)
        nominal = share * full / step
        rounded = step * (math.floor(nominal + 1e-9) if at_most else math.ceil(nominal - 1e-9))
        value = min(max(rounded, self._info.rounded(self._info.minimum)), full)
        return Level(value, False, Unavailable(Why.UNCALIBRATED, self._why), self._why)
