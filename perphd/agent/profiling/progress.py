"""Keeps a profile's progress in a file that is replaced after every point, so that an interrupted run can resume."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from perphd.domain.errors import PerphError
from perphd.predictor.profile.lattice import Axis, Lattice, Point

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ReferencePoint:
    """Performance of the application with its original resources. A value is None if it was not measured."""

    work: float
    work_source: str
    delay: float | None = None
    load: float | None = None
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    delay_source: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One allocation: settings in force in the axes' units, work per second, delay, load, and the reference's
    work at that time.
    """

    point: Point
    values: tuple[float, ...]
    work: float
    delay: float | None
    load: float | None
    reference: float


class ProfileProgress:
    """The points in order, with their results. ``path`` None: kept in memory only."""

    def __init__(
        self, app: str, lattice: Lattice, points: Sequence[Point], seed: int, path: Path | None
    ) -> None:
        self.app, self.lattice, self.seed, self._path = app, lattice, seed, path
        self.points = tuple(points)
        self.measured: dict[Point, MeasuredPoint] = {}
        self.suffered: dict[Point, str] = {}
        self.unknown: set[Point] = set()
        self.pruned: set[Point] = set()
        self.reference: ReferencePoint | None = None

    @property
    def done(self) -> int:
        """Number of points that need no trial any more."""
        known = {*self.measured, *self.suffered, *self.unknown, *self.pruned}
        return len(known.intersection(self.points))

    def knows(self, point: Point) -> bool:
        """True if the point was tried."""
        return point in self.measured or point in self.suffered or point in self.unknown

    def refer(self, reference: ReferencePoint) -> None:
        """Record a measurement of the reference; the first one defines 1.0."""
        if self.reference is None:
            self.reference = reference
            self._save()

    def add(self, measured: MeasuredPoint) -> None:
        """Record a measured point."""
        self.measured[measured.point] = measured
        self._save()

    def add_suffered(self, point: Point, complaint: str) -> None:
        """Record a harmful point."""
        self.suffered[point] = complaint
        self._save()

    def add_unknown(self, point: Point) -> None:
        """Record a point without usable samples."""
        self.unknown.add(point)
        self._save()

    def add_pruned(self, point: Point) -> None:
        """Record a point that is skipped because it grants no more than a harmful one.

        It is not saved, because it follows from the harmful ones.
        """
        self.pruned.add(point)

    def forget(self) -> None:
        """Delete the file after completion."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _save(self) -> None:
        if self._path is None:
            return
        data = {
            "format": "perphd-profile-progress",
            "version": VERSION,
            "app": self.app,
            "seed": self.seed,
            "axes": [asdict(axis) for axis in self.lattice.axes],
            "points": self.points,
            "reference": asdict(self.reference) if self.reference is not None else None,
            "measured": [asdict(item) for item in self.measured.values()],
            "suffered": [[point, why] for point, why in self.suffered.items()],
            "unknown": sorted(self.unknown),
        }
        write_atomically(self._path, json.dumps(data))

    @classmethod
    def load(cls, path: Path, app: str) -> ProfileProgress | None:
        """The progress of an earlier run; None if there is none.

        Raises:
            PerphError: the file is damaged or belongs to another application; the message says what to do.
        """
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
            if (
                data["format"] != "perphd-profile-progress"
                or data["version"] != VERSION
                or data["app"] != app
            ):
                raise ValueError(
                    f"it is {data['format']!r}, version {data.get('version')}, of {data.get('app')!r} "
                    f"instead of 'perphd-profile-progress', version {VERSION}, of {app!r}"
                )
            lattice = Lattice(
                tuple(
                    Axis(a["name"], a["unit"], tuple(map(float, a["steps"])), bool(a["slow"]))
                    for a in data["axes"]
                )
            )
            made = cls(app, lattice, [_point(p, lattice) for p in data["points"]], int(data["seed"]), path)
            made.reference = None if data["reference"] is None else ReferencePoint(**data["reference"])
            for item in data["measured"]:
                measured = MeasuredPoint(
                    **(item | {"point": _point(item["point"], lattice), "values": _values(item["values"])})
                )
                if len(measured.values) != len(lattice.axes):
                    raise ValueError(
                        f"{measured.values}: {len(lattice.axes)} values are needed, one per axis"
                    )
                if not (math.isfinite(measured.work) and measured.work > 0 and measured.reference > 0):
                    raise ValueError(
                        f"work is {measured.work}, its reference {measured.reference}; both must be finite and above 0"
                    )
                made.measured[measured.point] = measured
            made.suffered = {_point(point, lattice): str(why) for point, why in data["suffered"]}
            made.unknown = {_point(point, lattice) for point in data["unknown"]}
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise PerphError(f"{path}: cannot be read: {exc.strerror}") from exc
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise PerphError(
                f"{path}: cannot be resumed: {exc}; --fresh starts over and replaces it"
            ) from exc
        return made


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's content atomically: after a crash, either the old or the new content exists.

    Raises:
        PerphError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise PerphError(f"{path}: cannot be written: {exc.strerror}") from exc


def _values(data: Any) -> tuple[float, ...]:
    values = tuple(float(value) for value in data)
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"{values} contains a value that is not a finite number")
    return values


def _point(data: Any, lattice: Lattice) -> Point:
    point = tuple(int(step) for step in data)
    if len(point) != len(lattice.axes) or any(
        not 0 <= step < len(axis.steps) for step, axis in zip(point, lattice.axes, strict=True)
    ):
        raise ValueError(
            f"{point} is not a cell of the lattice of {[len(axis.steps) for axis in lattice.axes]} steps"
        )
    return point
