"""What a bandwidth level really delivers: measured curves, kept in a file, and looked up by everything above.

The numbers in a schemata's MB line are nominal. Intel's are steps of a delay between core and memory, whose effect
depends on the machine, the number of busy cores and the mode of throttling (resctrl.rst, "Memory bandwidth Allocation
and monitoring"), and some of which do nothing at all. AMD's are absolute, but what a domain can move is not told. So:
measure once (``rdt.calibrate``), and ask ``rdt.lookup``.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdt.errors import Broken, Unsupported, from_oserror
from rdt.info import BandwidthInfo, BandwidthUnit

VERSION = 1
TOLERANCE = 0.05
"""Levels whose bandwidths differ by less than this part make no difference: two runs of one probe differ as much."""


@dataclass(frozen=True, slots=True)
class Point:
    """A level in the file's own unit, and the bytes a second measured at it."""

    level: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One domain with so many cores streaming. Points are in ascending order of their levels."""

    resource: str
    domain: int
    cores: int
    measured_by: str
    """``mbm``: counted by the kernel, comparable with ``rdt.monitor``; ``probe``: as the probe counted its copies."""
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        levels = [point.level for point in self.points]
        if not levels or levels != sorted(set(levels)):
            raise ValueError(f"levels must ascend: {levels}")
        if any(not math.isfinite(point.bytes_per_s) or point.bytes_per_s < 0 for point in self.points):
            raise ValueError("bandwidths are finite and not negative")

    def steady(self) -> tuple[Point, ...]:
        """The points without noise: a higher level never delivers less (isotonic regression, equal weights)."""
        blocks: list[tuple[float, int]] = []  # mean, how many points
        for point in self.points:
            mean, count = point.bytes_per_s, 1
            while blocks and blocks[-1][0] > mean:
                before, many = blocks.pop()
                mean, count = (before * many + mean * count) / (many + count), many + count
            blocks.append((mean, count))
        means = [mean for mean, count in blocks for _ in range(count)]
        return tuple(Point(point.level, mean) for point, mean in zip(self.points, means, strict=True))

    def useful(self, tolerance: float = TOLERANCE) -> tuple[Point, ...]:
        """The levels that make a difference, ascending. Of levels that deliver the same, the highest stays: it holds
        the others' bandwidth, too, and delays least.
        """
        kept: list[Point] = []
        for point in reversed(self.steady()):
            if not kept or point.bytes_per_s < kept[-1].bytes_per_s * (1 - tolerance):
                kept.append(point)
        return tuple(reversed(kept))

    @property
    def top(self) -> Point:
        """What the domain delivers unthrottled, to so many cores."""
        return self.steady()[-1]

    def at(self, level: int) -> float:
        """Bytes a second at a level: measured, or on the line between the measured ones; held at both ends."""
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
        """The lowest useful level that delivers this much; None if the domain cannot."""
        return next((point for point in self.useful(tolerance) if point.bytes_per_s >= bytes_per_s), None)

    def at_most(self, bytes_per_s: float, tolerance: float = TOLERANCE) -> Point | None:
        """The highest useful level that delivers no more than this; None if even the lowest delivers more."""
        within = [point for point in self.useful(tolerance) if point.bytes_per_s <= bytes_per_s]
        return within[-1] if within else None


@dataclass(frozen=True, slots=True)
class Calibration:
    """All curves of a machine, and what they hold for."""

    machine: str
    """The CPU's model name; curves of another one are worthless."""
    made: str
    """When: ISO 8601, for people."""
    unit: BandwidthUnit
    minimum: int
    granularity: int
    throttle_mode: str | None
    curves: tuple[Curve, ...]

    def curve(self, resource: str, domain: int, cores: int) -> Curve | None:
        """The domain's curve for the number of cores nearest to this (of two as near, the lower); None without any."""
        of_domain = [each for each in self.curves if (each.resource, each.domain) == (resource, domain)]
        return min(of_domain, key=lambda each: (abs(each.cores - cores), each.cores), default=None)

    def misfit(self, info: BandwidthInfo, machine: str) -> str:
        """Why these curves do not hold for a machine; empty if they do."""
        here = (info.unit, info.minimum, info.granularity, info.thread_throttle_mode)
        there = (self.unit, self.minimum, self.granularity, self.throttle_mode)
        if self.machine != machine:
            return f"it was made on {self.machine!r}, this is {machine!r}"
        if here != there:
            return "the steps, the unit or the mode of throttling are others now"
        return ""

    def with_curves(self, curves: Iterable[Curve]) -> Calibration:
        """These curves in place of older ones of the same domain and number of cores."""
        merged = {(each.resource, each.domain, each.cores): each for each in (*self.curves, *curves)}
        ordered = tuple(merged[key] for key in sorted(merged))
        return Calibration(
            self.machine, self.made, self.unit, self.minimum, self.granularity, self.throttle_mode, ordered
        )

    # --- the file -----------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The file's text."""
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
        """Raises Unsupported for another version of the file, Broken for what is no calibration."""
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
            reason=f"version {version!r}, this program knows {VERSION}; calibrate again",
        )

    def save(self, path: str | Path) -> None:
        """Write the file so that a reader finds the old or the new one, never a part."""
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
        """Raises Gone without the file, and as ``from_json``."""
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
