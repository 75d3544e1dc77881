"""What the queue learns about its own predictions: growth, correlation, and what a probability has meant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perphd.batch.admission import ResourceRisk, admission
from perphd.batch.calibration import (
    CORRELATION_PRIOR,
    UsageCalibration,
    score,
    with_job,
    with_scores,
    with_sum,
)
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import CPU, MEMORY, ExpectedSum, JobOutlook
from perphd.batch.observations import HALF_S, Observations
from perphd.forecast.grid import of_outcomes
from perphd.forecast.histogram import of_values
from tests.unit.queue_world import GIB, spec


def test_jobs_that_keep_to_their_first_minute_give_weight_to_what_was_observed() -> None:
    kept = grown = UsageCalibration()
    assert kept.observed_weight == 0.5
    for _ in range(50):
        kept, grown = with_job(kept, 1.0, 1.04), with_job(grown, 1.0, 2.0)
    assert kept.observed_weight > 0.95
    assert grown.observed_weight < 0.05
    for _ in range(400):  # the programs have changed
        kept = with_job(kept, 1.0, 2.0)
    assert kept.observed_weight < 0.2


@pytest.mark.parametrize("shared", [0.0, 0.6])
def test_the_correlation_is_measured(shared: float) -> None:
    rng = np.random.default_rng(5)
    prior = of_values(rng.standard_normal(2000) + 10.0)
    learned = UsageCalibration()
    assert learned.correlation == pytest.approx(CORRELATION_PRIOR)
    for _ in range(300):
        common = rng.standard_normal()
        used = 10.0 + np.sqrt(shared) * common + np.sqrt(1.0 - shared) * rng.standard_normal(5)
        scores = [score(prior, float(each)) for each in used]
        for n, each in enumerate(scores):
            learned = with_scores(learned, each, scores[:n])
    assert learned.correlation == pytest.approx(shared, abs=0.12)


def test_a_probability_becomes_what_it_has_meant() -> None:
    law = of_outcomes({float(n): 1.0 for n in range(1, 101)}, 100.0, 100)
    timid, bold, right = UsageCalibration(), UsageCalibration(), UsageCalibration()
    for n in range(400):
        timid = with_sum(timid, law, 45.0 + n % 10, False)  # always near the middle of what was predicted
        bold = with_sum(
            bold, law, 30.0 if n % 4 else 120.0, False
        )  # a quarter is beyond everything predicted
        right = with_sum(right, law, 1.0 + n % 100, False)
    for over in (0.05, 0.1, 0.3):
        assert timid.corrected(over) < over / 2
        assert bold.corrected(over) > 0.2
        assert right.corrected(over) == pytest.approx(over, abs=0.02)
    assert all(each.corrected(0.0) == 0.0 for each in (timid, bold, right))
    rates = [bold.corrected(each / 50) for each in range(51)]
    assert rates == sorted(rates)
    task = of_outcomes({0.0: 0.9, 60.0: 0.1}, 100.0, 100)
    running = of_outcomes({50.0: 1.0}, 100.0, 100)
    assert not admission({CPU: ResourceRisk(running, task, 0.09)}).admitted
    assert admission({CPU: ResourceRisk(running, task, 0.09, timid)}).admitted


def test_sums_beyond_their_laws_do_not_refuse_what_is_sure_to_fit() -> None:
    law = of_outcomes({float(n): 1.0 for n in range(1, 101)}, 100.0, 100)
    learned = UsageCalibration()
    for n in range(30):
        learned = with_sum(learned, law, 120.0 if n < 3 else 50.0, False)
    assert learned.corrected(0.05) > 0.05, "a tenth of all sums was beyond its law"
    assert learned.corrected(1e-12) < 1e-10
    few = [learned.corrected(each) for each in np.linspace(0.0, 0.05, 200)]
    assert few == sorted(few)
    assert few[-1] - few[-2] < 0.01, "no jump where the levels begin to tell"


def test_a_full_shared_resource_says_only_that_the_sum_was_high() -> None:
    law = replace(of_outcomes({50.0: 0.8}, 100.0, 100), over=0.2)
    law = replace(law, shares=law.shares * 0.8)
    assert with_sum(UsageCalibration(), law, 99.0, True).levels == (0.9,)
    (level,) = with_sum(UsageCalibration(), law, 99.0, False).levels
    assert level == pytest.approx(0.8)


def running(number: int, attempt: int = 1) -> QueuedJob:
    return QueuedJob(number, spec(memory_bytes=GIB), 0.0, state=JobState.RUNNING, attempt=attempt)


def test_a_sum_is_compared_with_the_law_that_admitted_it_when_the_first_minute_is_over() -> None:
    seen, known = Observations(), JobOutlook(cpus=of_values([1.0, 2.0, 3.0]))
    law = of_outcomes({2.0: 0.5, 6.0: 0.5}, 8.0, 64)
    first, second = running(1), running(2)
    seen.see_others(CPU, 1.0, 5.0)
    seen.decided([ExpectedSum(2, CPU, (1, 2), law)])
    for _ in range(11):
        seen.see(first, 5.0, {CPU: 2.0, MEMORY: 100.0}, known)
        seen.see(second, 5.0, {CPU: 2.5}, known)
    assert not seen.calibration[CPU].levels
    seen.see(second, 5.0, {CPU: 2.5}, known)
    assert list(seen.calibration[CPU].levels) == pytest.approx([0.5]), (
        "1 + 2 + 2.5 lies between the two outcomes"
    )
    assert seen.of(second).done.cpu_s == pytest.approx(2.5 * 60.0)
    seen.see(second, 65.0, {CPU: 2.5}, known)
    used = seen.forget(second, True)
    assert used is not None
    assert used.seen[CPU].most == 2.5
    assert seen.calibration[CPU].observed_weight > 0.5
    assert seen.calibration[MEMORY] == UsageCalibration(), "nothing was seen of it"


def test_nothing_is_learned_from_a_sum_with_a_member_that_was_not_seen_or_from_another_attempt() -> None:
    seen, known = Observations(), JobOutlook()
    seen.decided([ExpectedSum(1, CPU, (1, 7), of_outcomes({2.0: 1.0}, 8.0, 64))])
    seen.see(running(1), 70.0, {CPU: 2.0}, known)
    assert seen.calibration[CPU].levels == ()
    assert seen.forget(running(1, 2), True) is None
    assert seen.of(running(1, 2)).seconds == 0.0


def test_what_others_use_is_forgotten_after_two_halves() -> None:
    seen = Observations()
    for used in (1.0, 2.0, 3.0, 4.0):
        seen.see_others(CPU, used, HALF_S)
    assert seen.others[CPU].whole.least == 3.0
    assert seen.others[CPU].last == 4.0
