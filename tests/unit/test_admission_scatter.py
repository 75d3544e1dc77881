"""The scatter of latency is measured by itself, because scores show it only when it is too late."""

from __future__ import annotations

import math
from random import Random

import pytest

from perphd.admission.detector.judge import DetectorState, Judgement, Target, judge
from perphd.admission.detector.scatter import (
    LEAST_DIFFERENCES,
    Scatter,
    blatant_below,
    clear_below,
    of_latency,
    reached,
)
from perphd.admission.settings import PolicySettings
from perphd.domain.policy import Band
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Sample
from perphd.domain.signals import Performance, performance

TARGET = Target(90.0, 3.0, Band(100.0, 0.02, 50.0), Band(1.3, 0.05, 50.0))


class Open:
    """A model that knows no reference beyond the target's."""

    is_closed = False

    def reference(self, signal: str, load: object) -> None:
        return None


def seen(state: DetectorState, at_s: float, p95_ms: float, *, protected: bool = True) -> Judgement:
    sample = Sample(
        "db", at_s, 1.0, work_rate_per_s=100.0, load_per_s=100.0, cpu_some_pct=30.0, latency_p95_ms=p95_ms
    )
    perf = performance(sample)
    settings = PolicySettings()
    return judge(state, sample, perf, TARGET, Open(), settings, protected=protected, period_s=1.0)  # type: ignore[arg-type]


def on_target(sd: float, seed: int = 1) -> DetectorState:
    """After a minute on target, with latency that scatters by ``sd`` far from its limit."""
    state, random = DetectorState(), Random(seed)
    for second in range(60):
        state = seen(state, float(second), 1.5 * math.exp(random.gauss(0.0, sd))).state
    return state


def latency(p95_ms: float, source: str = "latency_p95_ms") -> Performance:
    return Performance(100.0, "sli", p95_ms, source, 100.0)


def test_scores_hide_the_scatter_of_latency_while_there_is_room() -> None:
    state = on_target(0.2)
    assert state.scatter.sd == pytest.approx(0.01)
    assert state.delays.sd == pytest.approx(0.2, rel=0.4)


def test_one_late_sample_of_a_protected_lra_is_no_blatant_shortfall_if_its_latency_scatters() -> None:
    noisy, steady, late_ms = on_target(0.2), on_target(0.01), 3.0 / 0.8
    assert not seen(noisy, 60.0, late_ms).blatant
    assert not seen(noisy, 60.0, late_ms).clear
    assert seen(steady, 60.0, late_ms).blatant
    assert seen(noisy, 60.0, late_ms, protected=False).blatant, "without protection trouble is likely"


def test_twice_the_accepted_latency_is_blatant_however_much_it_scatters() -> None:
    found = seen(on_target(0.5), 60.0, 3.0 / 0.45)
    assert found.blatant
    assert found.clear
    assert blatant_below(1.0) == 0.5


def test_a_reduction_is_undone_on_less_evidence_than_anything_else() -> None:
    found = seen(on_target(0.2), 60.0, 3.0 / 0.55)
    assert found.clear
    assert clear_below(0.06, 0.06) == blatant_below(0.06), "as always where latency does not decide"
    assert blatant_below(0.2) < clear_below(0.02, 0.2) < clear_below(0.02, 0.1)


def test_scatter_falls_with_the_square_root_of_the_time_that_a_sample_covers() -> None:
    delays = Scatter(n=30, mean_step=0.2)
    assert delays.sd is not None
    assert reached(0.01, delays, 1.1, 1.2, 1.0) == pytest.approx(delays.sd)
    assert reached(0.01, delays, 1.1, 1.2, 0.25) == pytest.approx(2.0 * delays.sd)
    quick, slow = Scatter(), Scatter()
    for number in range(LEAST_DIFFERENCES + 1):
        quick = of_latency(quick, latency(1.0 if number % 2 else 1.2), 0.25)
        slow = of_latency(slow, latency(1.0 if number % 2 else 1.2), 1.0)
    assert quick.sd is not None
    assert slow.sd == pytest.approx(2.0 * quick.sd)


@pytest.mark.parametrize(
    ("work_score", "delay_score", "sd", "takes"),
    [(1.1, 1.2, 0.1, True), (1.1, 2.5, 0.1, False), (1.1, 2.5, 0.5, True), (1.0, 0.9, 0.02, True)],
)
def test_latency_counts_where_it_can_make_a_score(
    work_score: float, delay_score: float, sd: float, takes: bool
) -> None:
    delays = Scatter(n=30, mean_step=sd / (math.sqrt(math.pi) / 2.0))
    assert reached(0.015, delays, work_score, delay_score, 1.0) == pytest.approx(sd if takes else 0.015)


def test_scatter_that_is_not_known_yet_changes_nothing() -> None:
    assert reached(0.05, Scatter(), 1.1, 0.9, 1.0) == 0.05
    assert reached(0.05, Scatter(n=30, mean_step=0.2), 1.1, 0.9, 0.0) == 0.05
    known = Scatter(n=30, mean_step=0.2, last=0.1)
    assert math.isnan(of_latency(known, latency(1.0, "cpu_pressure"), 1.0).last), "only latency is measured"
    unread = Performance(100.0, "sli", NOT_MEASURED, "latency_p95_ms", 100.0)
    assert math.isnan(of_latency(known, unread, 1.0).last)
