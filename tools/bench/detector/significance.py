"""False alarms per day and detection delay of the CUSUM, on noise as applications show it.

Noise: AR(1) with correlation 0.6 between seconds and Student t(4) tails; shifts in standard deviations of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from perphd.admission import cusum
from perphd.admission.settings import PolicySettings

_DAY = 86_400
_BEFORE = 900
_GIVE_UP = 900


@dataclass(frozen=True, slots=True)
class Noise:
    """AR(1) noise: correlation ``rho`` of one sample with the next, standard deviation ``sd``, t(4) tails or normal."""

    rho: float = 0.6
    sd: float = 0.05
    heavy: bool = True

    def draw(self, rng: random.Random, count: int) -> Iterator[float]:
        """``count`` samples."""
        step, value = math.sqrt(1.0 - self.rho * self.rho), 0.0
        for _ in range(count):
            innovation = rng.gauss(0.0, 1.0)
            if self.heavy:
                innovation /= math.sqrt(rng.gammavariate(2.0, 0.5)) * math.sqrt(2.0)
            value = self.rho * value + step * innovation
            yield self.sd * value


def false_alarms(days: int, noise: Noise, seed: int, settings: PolicySettings) -> list[int]:
    """Alarms where nothing is wrong, of every day of one application's life."""
    k, rate = settings.cusum_k, settings.false_alarms_per_day
    h = cusum.threshold(rate, 1.0, k)
    alarms, state = [0] * days, cusum.Baseline()
    for at, residual in enumerate(noise.draw(random.Random(f"{seed}"), days * _DAY)):
        state = cusum.step(state, residual, k, h)
        if cusum.has_moved(state, h, rate, 1.0, k):
            alarms[at // _DAY] += 1
            state = cusum.cleared(state, h)
    return alarms


def delays(shift_sd: float, runs: int, noise: Noise, seed: int, settings: PolicySettings) -> list[float]:
    """Samples from a lasting shift to the alarm, sorted; infinite where it was missed for 15 minutes."""
    k, rate = settings.cusum_k, settings.false_alarms_per_day
    h = cusum.threshold(rate, 1.0, k)
    found: list[float] = []
    for run in range(runs):
        state, delay = cusum.Baseline(), math.inf
        for at, residual in enumerate(noise.draw(random.Random(f"{seed}+{run}"), _BEFORE + _GIVE_UP)):
            shifted = residual + (shift_sd * noise.sd if at >= _BEFORE else 0.0)
            state = cusum.step(state, shifted, k, h)
            if cusum.has_moved(state, h, rate, 1.0, k):
                if at >= _BEFORE:
                    delay = float(at - _BEFORE + 1)
                    break
                state = cusum.cleared(state, h)
        found.append(delay)
    return sorted(found)
