"""The detector's expected rate of false alarms, from observed noise and from a self-test on generated noise."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator
from typing import Final

from perphd.admission.detector import cusum, significance
from perphd.admission.detector.cusum import Baseline
from perphd.admission.detector.judge import DetectorState
from perphd.admission.detector.significance import ASSUMED_DELAY, Channel, Weighed
from perphd.admission.features import windowed
from perphd.admission.features.egress import memory_within
from perphd.admission.perph import PerphMemory
from perphd.admission.settings import PolicySettings
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.status import DetectorTest

TEST_SAMPLES: Final = 16000
CORRELATION: Final = 0.5
"""Lag-1 correlation of the generated noise, typical of real services' rates at one-second samples."""
NOISE_SD: Final = 0.05
"""Scatter of the generated noise, in log units."""
DROP_SIGMA: Final = 2.0
TRIALS: Final = 9
PATIENCE: Final = 200
"""Number of samples after which a drop counts as not detected."""
_NOTHING: Final = Channel(math.nan, ASSUMED_DELAY, NOISE_SD)
_TOO_FEW_RISES: Final = Unavailable(
    f"{TEST_SAMPLES} generated samples are too few to estimate so low a rate of false alarms"
)
NOT_OBSERVED: Final = Unavailable("the noise of this signal was not observed for long enough")
"""Reason while a signal's false alarms cannot be estimated."""
TOO_OFTEN: Final = 3.0
"""Ratio of expected to accepted false alarms above which the self-test fails."""


def expected(memory: object, name: str, settings: PolicySettings, period_s: float) -> Reading:
    """Expected false alarms per day, from an LRA's own noise. ``memory``: the policy's memory."""
    memory = windowed.memory_within(memory_within(memory))
    if not isinstance(memory, PerphMemory):
        return Unavailable("the policy in use does not detect losses of performance")
    if memory.partitioned is not None and name in memory.partitioned.members:
        return expected_false_alarms(memory.partitioned.members[name].detector, settings, period_s)
    if name in memory.lras:
        return expected_false_alarms(memory.lras[name].detector, settings, period_s)
    return NOT_MEASURED


def expected_false_alarms(state: DetectorState, settings: PolicySettings, period_s: float) -> Reading:
    """Expected false alarms per day from the LRA's own noise; Unavailable until enough was observed."""
    found = significance.expected_per_day(
        (state.work, state.delay),
        state.margins,
        settings.false_alarms_per_day,
        period_s,
        settings.cusum_k,
        settings.confirm_ticks,
    )
    return NOT_OBSERVED if found is None else found


def self_test(settings: PolicySettings, period_s: float) -> DetectorTest:
    """Run the detector on generated correlated normal noise, and on drops of two sigma in it.

    The target lies one sigma below the reference. Applications have heavier tails, so normal noise should cause fewer
    false alarms than are accepted. The test takes about a second of CPU time.
    """
    rate, made = settings.false_alarms_per_day, _noise(random.Random(1))
    state = Baseline()
    for _ in range(TEST_SAMPLES):
        state = _weighed(state, next(made), settings, period_s).work
    margins = (NOISE_SD, ASSUMED_DELAY)
    found = significance.expected_per_day(
        (state, Baseline()), margins, rate, period_s, settings.cusum_k, settings.confirm_ticks
    )
    delays = [_found_after(cusum.cleared(state), made, settings, period_s) for _ in range(TRIALS)]
    delay = statistics.median(delays)
    return DetectorTest(
        accepted_per_day=rate,
        expected_per_day=_TOO_FEW_RISES if found is None else found,
        found_after_samples=Unavailable(f"not within {PATIENCE} samples") if delay >= PATIENCE else delay,
    )


def failure(test: DetectorTest) -> str:
    """Message for the operator if the self-test failed; empty if it passed."""
    if isinstance(test.found_after_samples, Unavailable):
        return (
            f"detector self-test: a drop of two sigma was not found within {PATIENCE} samples: "
            "tuning.policy.cusum_k is too high, or policy.false_alarms_per_day too low"
        )
    rate = test.expected_per_day
    if isinstance(rate, float) and rate > TOO_OFTEN * test.accepted_per_day:
        return (
            f"detector self-test: {rate:.1f} false alarms a day are expected, {test.accepted_per_day:g} are accepted "
            "(policy.false_alarms_per_day)"
        )
    return ""


def _noise(source: random.Random) -> Iterator[float]:
    """Correlated normal noise with a standard deviation of 1."""
    value, share = 0.0, (1.0 - CORRELATION * CORRELATION) ** 0.5
    while True:
        value = CORRELATION * value + share * source.gauss(0.0, 1.0)
        yield value


def _weighed(state: Baseline, error: float, settings: PolicySettings, period_s: float) -> Weighed:
    """Weigh one sample of generated noise; ``error`` is in sigma."""
    return significance.weigh(
        (state, Baseline()),
        (Channel(NOISE_SD * (error - 1.0), NOISE_SD, NOISE_SD), _NOTHING),
        settings.false_alarms_per_day,
        period_s,
        spend=1.0,
        large_k=settings.cusum_k,
        ticks=settings.confirm_ticks,
        interval_s=period_s,
        part=1.0,
    )


def _found_after(state: Baseline, made: Iterator[float], settings: PolicySettings, period_s: float) -> float:
    """Number of samples from the start of a drop until the evidence suffices; ``PATIENCE`` if it never does."""
    for sample in range(1, PATIENCE):
        weighed = _weighed(state, DROP_SIGMA + next(made), settings, period_s)
        state = weighed.work
        if weighed.moved:
            return float(sample)
    return float(PATIENCE)
