"""Measured bandwidth of throttle levels: curves, their file, and lookups.

The numbers in a schemata's MB line are nominal. Intel's are steps of a delay between core and memory. Their
effect depends on the machine, the number of busy cores and the throttling mode (resctrl.rst, "Memory
bandwidth Allocation and monitoring"), and some steps have no effect. AMD's numbers are absolute, but the
maximum of a domain is unknown. Therefore, measure once with ``rdt.calibrate`` and look up levels here.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdt.access import decoded
from rdt.errors import Broken, Invalid, Unsupported, from_oserror
from rdt.frozen import FrozenDict
from rdt.fs import Fs
from rdt.info import BandwidthInfo, BandwidthUnit
from rdt.reading import Reading, Unavailable, Why

VERSION = 1
TOLERANCE = 0.05
"""Relative difference below which two bandwidths count as equal: repeated measurements differ by this much."""


@dataclass(frozen=True, slots=True)
class Point:
    """A level, in the unit that the schemata file uses, and the bandwidth measured at this level."""

    level: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Bandwidths measured in one domain with ``cores`` streaming cores; points in ascending order of levels."""

    resource: str
    domain: int
    cores: int
    measured_by: str
    """``mbm``: counted by the kernel, comparable with ``rdt.monitor``; ``probe``: counted by the streams."""
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        levels = [point.level for point in self.points]
        if not levels or levels != sorted(set(levels)):
            raise ValueError(f"levels must ascend: {levels}")
        if any(not math.isfinite(point.bytes_per_s) or point.bytes_per_s < 0 for point in self.points):
            raise ValueError("bandwidths must be finite and not negative")

    def steady(self) -> tuple[Point, ...]:
        """The points, smoothed so that a higher level never delivers less (isotonic regression, equal weights)."""
        blocks: list[tuple[float, int]] = []  # mean, number of points
        for point in self.points:
            mean, count = point.bytes_per_s, 1
            while blocks and blocks[-1][0] > mean:
                before, many = blocks.pop()
                mean, count = (before * many + mean * count) / (many + count), many + count
            blocks.append((mean, count))
        means = [mean for mean, count in blocks for _ in range(count)]
        return tuple(Point(point.level, mean) for point, mean in zip(self.points, means, strict=True))

    def useful(self, tolerance: float = TOLERANCE) -> tuple[Point, ...]:
        """The levels that make a difference, ascending.

        If several levels deliver the same, the highest stays, because it delays least.
        """
        kept: list[Point] = []
        for point in reversed(self.steady()):
            if not kept or point.bytes_per_s < kept[-1].bytes_per_s * (1 - tolerance):
                kept.append(point)
        return tuple(reversed(kept))

    @property
    def top(self) -> Point:
        """The unthrottled level and its bandwidth."""
        return self.steady()[-1]

    def at(self, level: int) -> float:
        """Bytes per second at a level, interpolated linearly; constant beyond the measured levels."""
        points = self.steady()
        index = bisect_left([point.level for point in points], level)
        if index == len(points):
            return points[-1].bytes_per_s
        high = points[index]
        if index == 0 or high.level == level:
            return high.bytes_per_s
        low = points[index - 1]
        part = (level - low.level) / (high.level - low.level)
        return low.bytes_per_s + part * (high.bytes_per_s - low.bytes_per_s)

    def at_least(self, bytes_per_s: float, tolerance: float = TOLERANCE) -> Point | None:
        """The lowest useful level that delivers this much; None if no level does."""
        return next((point for point in self.useful(tolerance) if point.bytes_per_s >= bytes_per_s), None)

    def at_most(self, bytes_per_s: float, tolerance: float = TOLERANCE) -> Point | None:
        """The highest useful level that delivers no more than this; None if even the lowest delivers more."""
        within = [point for point in self.useful(tolerance) if point.bytes_per_s <= bytes_per_s]
        return within[-1] if within else None


@dataclass(frozen=True, slots=True)
class Calibration:
    """All curves of a machine, and the settings under which they are valid."""

    machine: str
    """The CPU's model name; curves of another model are invalid."""
    made: str
    """Time of the calibration (ISO 8601), for display only."""
    unit: BandwidthUnit
    minimum: int
    granularity: int
    throttle_mode: str | None
    curves: tuple[Curve, ...]

    def curve(self, resource: str, domain: int, cores: int) -> Curve | None:
        """The domain's curve for the nearest number of cores (on a tie, the lower); None without curves."""
        of_domain = [each for each in self.curves if (each.resource, each.domain) == (resource, domain)]
        return min(of_domain, key=lambda each: (abs(each.cores - cores), each.cores), default=None)

    def misfit(self, info: BandwidthInfo, machine: str) -> str:
        """The reason why these curves are invalid for a machine; empty if they are valid."""
        here = (info.unit, info.minimum, info.granularity, info.thread_throttle_mode)
        there = (self.unit, self.minimum, self.granularity, self.throttle_mode)
        if self.machine != machine:
            return f"it was measured on {self.machine!r}, but this machine is {machine!r}"
        if here != there:
            return "the steps, the unit or the throttling mode have changed"
        return ""

    def with_curves(self, curves: Iterable[Curve]) -> Calibration:
        """A copy in which ``curves`` replace those of the same resource, domain and number of cores."""
        merged = {(each.resource, each.domain, each.cores): each for each in (*self.curves, *curves)}
        ordered = tuple(merged[key] for key in sorted(merged))
        return Calibration(
            self.machine, self.made, self.unit, self.minimum, self.granularity, self.throttle_mode, ordered
        )

    # --- the file -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(
            {
                "version": VERSION,
                "machine": self.machine,
                "made": self.made,
                "unit": self.unit.value,
                "minimum": self.minimum,
                "granularity": self.granularity,
                "throttle_mode": self.throttle_mode,
                "curves": [
                    {
                        "resource": each.resource,
                        "domain": each.domain,
                        "cores": each.cores,
                        "measured_by": each.measured_by,
                        "levels": [point.level for point in each.points],
                        "bytes_per_s": [point.bytes_per_s for point in each.points],
                    }
                    for each in self.curves
                ],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str, path: str = "calibration") -> Calibration:
        """Parse the text of a file. Raises Unsupported for another version, Broken for invalid content."""
        try:
            data = json.loads(text)
            version = data["version"]
            if version == VERSION:
                return cls(
                    machine=_typed(data["machine"], str),
                    made=_typed(data["made"], str),
                    unit=BandwidthUnit(data["unit"]),
                    minimum=_typed(data["minimum"], int),
                    granularity=_typed(data["granularity"], int),
                    throttle_mode=None
                    if data["throttle_mode"] is None
                    else _typed(data["throttle_mode"], str),
                    curves=tuple(_curve(each) for each in data["curves"]),
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Broken(
                path, doing="reading", reason=f"not a calibration: {error}; calibrate again"
            ) from error
        raise Unsupported(
            path,
            doing="reading",
            reason=f"unsupported version {version!r} (allowed: {VERSION}); calibrate again",
        )

    def save(self, path: str | Path) -> None:
        """Write the file atomically: a reader finds the old or the new one."""
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(self.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise from_oserror(error, str(target), doing="writing") from error

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file. Raises Gone if it is missing, and the errors of ``from_json``."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise from_oserror(error, str(path), doing="reading") from error
        except UnicodeDecodeError as error:
            raise Broken(str(path), doing="reading", reason="not text") from error
        return cls.from_json(text, str(path))


def _curve(data: Any) -> Curve:
    levels, bandwidths = data["levels"], data["bytes_per_s"]
    points = tuple(
        Point(_typed(level, int), float(bandwidth))
        for level, bandwidth in zip(levels, bandwidths, strict=True)
    )
    return Curve(
        resource=_typed(data["resource"], str),
        domain=_typed(data["domain"], int),
        cores=_typed(data["cores"], int),
        measured_by=_typed(data["measured_by"], str),
        points=points,
    )


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


@dataclass(frozen=True, slots=True)
class Level:
    """A level to write, and its measured bandwidth if known."""

    value: int
    calibrated: bool
    bytes_per_s: Reading
    """Bytes per second for the given number of cores; Unavailable if not measured."""
    note: str = ""
    """Readable reason why the level is not calibrated or differs from the request; else empty."""


class BandwidthLookup:
    """Conversion between levels and shares or bytes per second.

    Args:
        info: the resource.
        calibration: its curves; None if none were measured.
        machine: this CPU's model name, to reject curves of another model; None: not checked.
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
        """Levels that make a difference, ascending. Without a calibration: all steps, or none in an open range."""
        curve = self._curve(domain, cores)
        if curve is None:
            return self._info.steps()
        return tuple(point.level for point in curve.useful(self._tolerance))

    def bandwidth(self, domain: int, cores: int, level: int) -> Reading:
        """Bytes per second that a level delivers to ``cores`` of a domain; Unavailable if not calibrated."""
        curve = self._curve(domain, cores)
        if curve is None:
            return Unavailable(Why.UNCALIBRATED, self._why)
        return curve.at(level)

    def for_bandwidth(self, domain: int, cores: int, bytes_per_s: float, *, at_most: bool = False) -> Level:
        """The lowest level that delivers this much or, with ``at_most``, the highest that delivers no more.

        If no level does, returns the highest useful level (with ``at_most``: the lowest) with a note. Without
        a calibration, returns the unthrottled level with a note.
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
        """The level that delivers a share (0 to 1) of the unthrottled bandwidth of these cores.

        Without a calibration, returns the nominal level of that share. Raises Invalid for a share outside of
        0 to 1.
        """
        if not 0 <= share <= 1:
            reason = "a share must be from 0 to 1"
            raise Invalid(self._info.name, doing="looking up a share of", value=str(share), reason=reason)
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


@dataclass(frozen=True, slots=True)
class Family:
    """Processors of one family, model and steppings (CPUID), and their levels that act like another level."""

    name: str
    vendor: str
    family: int
    model: int
    steppings: tuple[int, ...]
    acts_like: FrozenDict[int, int]
    source: str

    def levels(self, steps: Sequence[int]) -> tuple[int, ...]:
        """The levels among these that differ in effect on this hardware."""
        return tuple(level for level in steps if level not in self.acts_like)


FAMILIES: Final = (
    Family(
        "Intel Xeon Scalable, first generation (Skylake-SP)",
        "GenuineIntel",
        6,
        85,
        (4,),
        FrozenDict({70: 90, 80: 90}),
        "github.com/intel/intel-cmt-cat/issues/69: read back on Xeon Gold 6150, Gold 6126 and Silver 4114",
    ),
)


def family_of(fs: Fs) -> Family | None:
    """The known family of this machine's processors, by /proc/cpuinfo; None if unknown."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in decoded(fs.read("/proc/cpuinfo")).splitlines():
            name, colon, value = line.partition(":")
            if not colon and found:
                break  # one processor describes all
            found.setdefault(name.strip(), value.strip())
    for each in FAMILIES:
        here = [found.get(name) for name in ("vendor_id", "cpu family", "model")]
        same = here == [each.vendor, str(each.family), str(each.model)]
        if same and found.get("stepping") in [str(stepping) for stepping in each.steppings]:
            return each
    return None
