"""The last-level cache: division of its ways, adaptation of contents after a change, and remaining misses."""

from __future__ import annotations

from typing import Final

import numpy as np

from perphd.sim.node.grant import Array
from perphd.sim.node.physics import PRESENT, Physics
from perphd.sim.node.population import Population

LINE: Final = 64
_TURNOVERS: Final = 2.0  # multiple of a cache's size that must be loaded until its contents have settled
_SETTLE_MIN_S: Final = 0.02
_SETTLE_MAX_S: Final = 5.0  # contents settle within this time even in a cache with little traffic


def misses_pki(people: Population, occupancy: Array, physics: Physics = PRESENT) -> Array:
    """Misses per kilo-instruction [B,W,D] with these bytes of cache: one curve per program, exponential at
    present.
    """
    swing, scale = people.mpki_swing[:, None], people.mpki_scale[:, None]
    curve: Array = people.mpki_floor[:, None] + swing * physics.missing(occupancy / scale)
    return curve


def occupancy_target(people: Population, mask: Array, pressure: Array, way_bytes: float) -> Array:
    """Equilibrium occupancies [B,W,D]: every way is divided in proportion to its sharers' fill rates.

    Args:
        people: limits each to its footprint.
        mask: ways that each may fill, [B,W,D,ways].
        pressure: bytes brought in per second, [B,W,D].
        way_bytes: size of a way.
    """
    parts = mask * pressure[..., None]
    total = parts.sum(1)
    ways = np.einsum("bwdn,bdn->bwd", parts, way_bytes / np.maximum(total, 1e-12))
    target: Array = np.minimum(ways, people.footprint[:, None])
    return target


def settled_share(pressure: Array, size_bytes: float, dt_s: float) -> Array:
    """Share [B,1,D] of the distance to the target by which a cache's contents move in ``dt_s``. All workloads have the
    same share, so that no line belongs to two of them.
    """
    time_s = _TURNOVERS * size_bytes / np.maximum(pressure.sum(1), 1.0)
    time_s = np.minimum(np.maximum(time_s, _SETTLE_MIN_S), _SETTLE_MAX_S)
    share: Array = 1.0 - np.exp(-dt_s / time_s)
    return share[:, None, :]


def safe_share(
    people: Population,
    mpki: Array,
    occupancy: Array,
    target: Array,
    size_bytes: float,
    physics: Physics = PRESENT,
) -> Array:
    """The largest share [B,1,D] of the distance to the target by which a cache's contents can move without overshoot.

    A target falls as its owner's contents grow, because there are fewer misses and less pressure. The share is that
    of a Newton step, bounded by the sum of all slopes.
    """
    curved = 1.0 - people.mpki_floor[:, None] / np.maximum(mpki, 1e-12)
    scale = people.mpki_scale[:, None]
    slope = target * (1.0 - target / size_bytes) * curved / scale * physics.steepness(occupancy / scale)
    share: Array = 0.9 / (1.0 + np.maximum(slope, 0.0).sum(1))
    return share[:, None, :]
