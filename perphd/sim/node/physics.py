"""Exchangeable laws of the model: caches, memory channels, queues, threads of a core.

The archetypes were calibrated with ``PRESENT``, which perphd's prior partly assumes as well. The policy bench
draws other laws by seed (``tools.bench.policies.worlds``), so that results do not depend on the authors'
choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_TINY: Final = 1e-12


class MissCurve(StrEnum):
    """Form of the miss curve at ``u`` = cache / scale: it falls from the whole swing (no cache) to 0
    (infinite cache).
    """

    EXPONENTIAL = "exponential"  # exp(-u)
    PARETO = "pareto"  # (1 + u / 2)^-2: a long tail
    HILL = "hill"  # 1 / (1 + u^3): a working set that fits or does not


class ChannelQueue(StrEnum):
    """Congestion ``x`` of a shared queue (memory channels, disk, link) at utilisation ``u``."""

    SQUARE = "square"  # u^2 / (1 - u)
    FIXED = "fixed"  # u / (2 (1 - u)): M/D/1
    WALL = "wall"  # (u / (1 - u))^3 / 8: negligible, then abrupt


class Waiting(StrEnum):
    """Probability that a request waits for a CPU, and the form of the waiting time's tail."""

    SAKASEGAWA = "sakasegawa"  # busy^(sqrt(2 (m + 1)) - 1), exponential
    HALFIN_WHITT = (
        "halfin-whitt"  # [1 + b Phi(b) / phi(b)]^-1 at b = (1 - busy) sqrt(m), Weibull with shape 0.8
    )


@dataclass(frozen=True, slots=True)
class Physics:
    """One set of laws.

    ``overlap_power``: exponent of the share of time in which a sibling is busy, in the loss that the sibling causes.
    ``pace_power``: exponent of a group's use in the slowdown of its threads (``latency.pace``).
    ``mix_half``: share of foreign CPU time at which half of the damage to private caches is done. Near 0, a little
    foreign work does all the damage, and only exclusive CPUs keep warm caches. ``mix_scale``: factor on that damage.
    ``halt_ms``: delay of a request for waking a halted CPU, if all of the workload's CPUs are idle. CPUs that batch
    keeps awake respond at once.
    """

    misses: MissCurve = MissCurve.EXPONENTIAL
    channels: ChannelQueue = ChannelQueue.SQUARE
    waiting: Waiting = Waiting.SAKASEGAWA
    overlap_power: float = 2.0
    pace_power: float = 2.0
    mix_half: float = 0.10
    mix_scale: float = 1.0
    halt_ms: float = 0.0

    # -- caches ------------------------------------------------------------------------------------

    def missing(self, u: Array) -> Array:
        """Share of the swing that still misses at cache / scale."""
        if self.misses is MissCurve.PARETO:
            return np.asarray((1.0 + 0.5 * u) ** -2.0)
        if self.misses is MissCurve.HILL:
            return np.asarray(1.0 / (1.0 + u**3))
        return np.asarray(np.exp(-u))

    def steepness(self, u: Array) -> Array:
        """-d log(missing) / du."""
        if self.misses is MissCurve.PARETO:
            return np.asarray(1.0 / (1.0 + 0.5 * u))
        if self.misses is MissCurve.HILL:
            return np.asarray(3.0 * u * u / (1.0 + u**3))
        return np.ones_like(u)

    # -- shared queues -----------------------------------------------------------------------------

    def utilisation(self, x: Array) -> Array:
        """The utilisation at which a queue has this congestion."""
        if self.channels is ChannelQueue.FIXED:
            return np.asarray(2.0 * x / (1.0 + 2.0 * x))
        if self.channels is ChannelQueue.WALL:
            y = 2.0 * np.cbrt(x)
            return np.asarray(y / (1.0 + y))
        return np.asarray(0.5 * (np.sqrt(x * x + 4.0 * x) - x))

    def utilisation_slope(self, x: Array) -> Array:
        """The derivative with respect to x."""
        if self.channels is ChannelQueue.FIXED:
            return np.asarray(2.0 / (1.0 + 2.0 * x) ** 2)
        if self.channels is ChannelQueue.WALL:
            y = 2.0 * np.cbrt(x)
            return np.asarray(y / (3.0 * np.maximum(x, _TINY) * (1.0 + y) ** 2))
        return np.asarray((x + 2.0) / (2.0 * np.sqrt(x * x + 4.0 * x)) - 0.5)

    # -- waiting for a CPU -------------------------------------------------------------------------

    def queued(self, busy: Array, servers: Array) -> Array:
        """Share of the requests that wait."""
        if self.waiting is Waiting.HALFIN_WHITT:
            b = np.maximum(1.0 - busy, 1e-3) * np.sqrt(servers)
            below = 0.5 * (1.0 + _erf(b / math.sqrt(2.0)))
            density = np.exp(-0.5 * b * b) / math.sqrt(2.0 * math.pi)
            return np.asarray(
                np.minimum(1.0, 1.0 / (1.0 + b * below / np.maximum(density, _TINY))) * (busy > 0)
            )
        return np.asarray(busy ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0))

    def tail(self, ratio: Array) -> Array:
        """Wait of requests beyond a level, in multiples of the mean, at log(queued / level) = ``ratio``."""
        if self.waiting is Waiting.HALFIN_WHITT:
            return np.asarray(np.maximum(ratio, 0.0) ** (1.0 / 0.8))
        return ratio


PRESENT: Final = Physics()


def _erf(x: Array) -> Array:
    """The error function for x >= 0, to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1.0 / (1.0 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(1.0 - series * np.exp(-x * x))
