"""The significance of one signal on noise as applications show it: false alarms per day, and samples to the alarm.

Noise: AR(1) with correlation 0.6 between seconds and Student t(4) tails. The target lies one standard deviation below
the reference; shifts are in standard deviations from the reference. The bench calls the product's own functions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from perphd.admission.detector import cusum
from perphd.admission.detector.cusum import Baseline
from perphd.admission.detector.significance import ASSUMED_DELAY, Channel, Weighed, weigh
from perphd.admission.settings import PolicySettings

_DAY = 86_400
_BEFORE = 900
_GIVE_UP = 900
_NOTHING = Channel(math.nan, ASSUMED_DELAY, 0.05)


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


def weighed(state: Baseline, residual: float, sd: float, settings: PolicySettings) -> Weighed:
    """Process one sample, ``residual`` above the reference (log units)."""
    return weigh(
        (state, Baseline()),
        (Channel(residual - sd, sd, 0.05), _NOTHING),
        settings.false_alarms_per_day,
        1.0,
        spend=1.0,
        large_k=settings.cusum_k,
        ticks=settings.confirm_ticks,
        interval_s=1.0,
        part=1.0,
    )


def false_alarms(days: int, noise: Noise, seed: int, settings: PolicySettings) -> list[int]:
    """False alarms on each day of one application's life."""
    alarms, state = [0] * days, Baseline()
    for at, residual in enumerate(noise.draw(random.Random(f"{seed}"), days * _DAY)):
        found = weighed(state, residual, noise.sd, settings)
        state = found.work
        if found.moved:
            alarms[at // _DAY] += 1
            state = cusum.cleared(state)
    return alarms


def delays(shift_sd: float, runs: int, noise: Noise, seed: int, settings: PolicySettings) -> list[float]:
    """Samples from a lasting shift to the alarm, sorted; infinite if it was missed for 15 minutes."""
    found: list[float] = []
    for run in range(runs):
        state, delay = Baseline(), math.inf
        for at, residual in enumerate(noise.draw(random.Random(f"{seed}+{run}"), _BEFORE + _GIVE_UP)):
            told = weighed(
                state, residual + (shift_sd * noise.sd if at >= _BEFORE else 0.0), noise.sd, settings
            )
            state = told.work
            if told.moved:
                if at >= _BEFORE:
                    delay = float(at - _BEFORE + 1)
                    break
                state = cusum.cleared(state)
        found.append(delay)
    return sorted(found)
