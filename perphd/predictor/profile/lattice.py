"""The lattice of allocations that can be explored, and a well-spread sample of it in a safe order.

The sample is low-discrepancy: R_d, the additive recurrence of the generalised golden ratio (Roberts, "The unreasonable
effectiveness of quasirandom sequences", 2018), x_n = (s + n * alpha) mod 1 with alpha_i = g^-i and g the root of
g^(d+1) = g + 1. It fills the space evenly for every number of points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perphd.predictor.spread import golden_steps

Point: TypeAlias = tuple[int, ...]
"""A cell as step indices, one per axis; 0 is the tightest."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One knob: its steps from tight to generous, in ``unit``. ``slow``: True if a change takes long to take effect."""

    name: str
    unit: str
    steps: tuple[float, ...]
    slow: bool = False

    def __post_init__(self) -> None:
        if not self.steps or list(self.steps) != sorted(set(self.steps)):
            raise ValueError(
                f"{self.name}: has no step, or its steps are not in ascending order without repetition"
            )


@dataclass(frozen=True, slots=True)
class Lattice:
    """All combinations of the axes' steps."""

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of cells."""
        return int(np.prod([len(axis.steps) for axis in self.axes]))

    @property
    def most(self) -> Point:
        """The most generous cell, which restricts nothing."""
        return tuple(len(axis.steps) - 1 for axis in self.axes)

    def values(self, point: Point) -> tuple[float, ...]:
        """Values granted by a cell, in the axes' units."""
        return tuple(axis.steps[step] for axis, step in zip(self.axes, point, strict=True))

    def sample(self, count: int, seed: int = 0) -> tuple[Point, ...]:
        """``count`` different cells (at most all of them), evenly spread, from generous to tight."""
        count = min(count, self.size)
        shape = np.array([len(axis.steps) for axis in self.axes])
        start = np.random.default_rng(seed).random(len(shape))
        found: dict[Point, None] = {self.most: None}
        alpha = golden_steps(len(shape))
        n = 0
        while len(found) < count and n < 64 * self.size + 64:
            n += 1
            spot = np.floor(((start + n * alpha) % 1.0) * shape).astype(int)
            found.setdefault(tuple(int(step) for step in spot))
        if len(found) < count:  # almost the whole of a small lattice is requested
            for cell in np.ndindex(*shape.tolist()):
                if len(found) >= count:
                    break
                found.setdefault(tuple(int(step) for step in cell))
        return self.safe_order(tuple(found))

    def safe_order(self, points: Sequence[Point]) -> tuple[Point, ...]:
        """Order cells from generous to tight: by the scarcest resource, then by the sum.

        One nearly closed knob hurts more than four half-open ones. Slow knobs only go down, and only once: at
        each of their steps, all other knobs are explored.
        """
        last = np.maximum(np.array(self.most), 1)

        slow = [i for i, axis in enumerate(self.axes) if axis.slow]

        def tightness(point: Point) -> tuple[Point, float, float, Point]:
            open_ = np.array(point) / last
            open_ = np.where(np.array(self.most) > 0, open_, 1.0)
            open_[slow] = 1.0
            return (
                tuple(-point[i] for i in slow),
                -round(float(open_.min()) * 4) / 4,
                -float(open_.sum()),
                tuple(-s for s in point),
            )

        return tuple(sorted(points, key=tightness))

    def anchor(self, point: Point) -> Point:
        """The most generous cell that differs from ``point`` in fast knobs only."""
        return tuple(
            step if axis.slow else len(axis.steps) - 1 for step, axis in zip(point, self.axes, strict=True)
        )


def is_within(point: Point, other: Point) -> bool:
    """True if ``point`` grants no more than ``other`` in any dimension, and therefore hurts at least as much."""
    return all(a <= b for a, b in zip(point, other, strict=True))
