"""The verdict keeps its rate of false alarms; the bench's arithmetic on arrays is the product's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perphd.admission.detector.judge import DetectorState, Judgement, Target, judge
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Health
from perphd.domain.policy import Band
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.signals import performance
from tools.bench.detector import verdict
from tools.bench.detector.verdict import Cell, Lanes, Noise

NONE = Unavailable("not judged")


class Closed:
    """A model that knows nothing but that the load is a closed loop: all of a fall of work counts."""

    is_closed = True

    def reference(self, signal: str, load: object) -> None:
        return None


@pytest.mark.parametrize(
    ("work_sd", "delay_sd", "rho", "per_day"),
    [(0.05, 0.1, 0.0, 1.0), (0.15, math.nan, 0.6, 1.0), (0.3, 0.3, 0.8, 200.0), (0.1, 0.1, 0.6, 24.0)],
)
def test_the_arrays_say_what_the_detector_says_sample_by_sample(
    work_sd: float, delay_sd: float, rho: float, per_day: float
) -> None:
    settings = PolicySettings(false_alarms_per_day=per_day)
    band = Band(100.0, 0.05, 50.0)
    target = Target(90.0, NONE if math.isnan(delay_sd) else 1.5, band, Band(1.0, 0.05, 50.0))
    sd = np.array([[work_sd], [delay_sd]])
    noise = Noise(sd, np.full((2, 1), rho), np.random.default_rng(5))
    lanes, state, called = Lanes(1, settings), DetectorState(), 0
    for at in range(1500):
        x = noise.step() + (0.4 if at % 500 > 440 else 0.0)
        sample = Sample(
            "db", float(at), 1.0, work_rate_per_s=100.0 * math.exp(-x[0, 0]), cpu_some_pct=30.0,
            latency_p95_ms=NONE if math.isnan(x[1, 0]) else math.exp(x[1, 0]),
        )  # fmt: skip
        judged = judge(state, sample, performance(sample), target, Closed(), settings, period_s=1.0)  # type: ignore[arg-type]
        state = judged.state
        fresh = lanes.step(x - verdict.MARGINS)
        assert bool(lanes.degraded[0]) == (judged.verdict.health is Health.DEGRADED), at
        called += int(fresh[0])
        for base, row in ((state.work, 0), (state.delay, 1)):
            for name in ("n", "mean", "variance", "small", "large", "ratio", "rises", "height", "watched"):
                assert getattr(lanes, name)[row, 0] == pytest.approx(
                    getattr(base, name), rel=1e-9, abs=1e-12
                ), (at, name)
    assert called >= 2


def test_short_samples_strengthen_a_protection_only_if_they_cover_a_period() -> None:
    target = Target(90.0, NONE, Band(100.0, 0.05, 50.0), None)

    def likely_after(part_s: float, *, protected: bool, alert: bool = False) -> int:
        """Number of bad samples of this length after which a shortfall is likely."""
        state = DetectorState()
        for count in range(1, 9):
            sample = Sample("db", count * part_s, part_s, work_rate_per_s=30.0, cpu_some_pct=30.0)
            judged = judge(
                state,
                sample,
                performance(sample),
                target,
                Closed(),  # type: ignore[arg-type]
                PolicySettings(),
                alert,
                protected,
                period_s=1.0,
            )
            state = judged.state
            if judged.likely:
                return count
        raise AssertionError("never")

    assert likely_after(1.0, protected=True) == 1
    assert likely_after(0.25, protected=True) == 4
    assert likely_after(0.25, protected=False, alert=True) == 1
    assert likely_after(0.25, protected=False) == 2


@pytest.mark.parametrize(("is_stated", "found_after"), [((False, True), 60), ((False, False), None)])
def test_a_stated_objective_missed_for_a_minute_is_missed(
    is_stated: tuple[bool, bool], found_after: int | None
) -> None:
    """A reference that was learned on a full host scatters too much, but the objective does not depend on it."""
    wide = Band(25.0, 1.2, 50.0, provisional=True)
    target, state = Target(NONE, 8.0, Band(100.0, 0.05, 50.0), wide, is_stated=is_stated), DetectorState()
    for at in range(1, 61):
        sample = Sample("db", float(at), 1.0, work_rate_per_s=100.0, cpu_some_pct=80.0, latency_p95_ms=12.0)
        judged = judge(state, sample, performance(sample), target, Closed(), PolicySettings(), period_s=1.0)  # type: ignore[arg-type]
        state = judged.state
        if judged.verdict.health is Health.DEGRADED:
            assert at == found_after
            return
    assert found_after is None


@pytest.mark.parametrize("nearer", [None, 1.0])
def test_false_alarms_keep_to_the_configured_rate(nearer: float | None) -> None:
    """A few noises of the bench's grid, at a rate at which some hours tell; the whole grid is the bench's."""
    cells = tuple(Cell(*cell) for cell in (("work", 0.15, 0.0), ("work", 0.3, 0.6), ("latency", 0.3, 0.3)))
    means, _ = verdict.false_alarms(cells, 100.0, 1.0, 0.06, 16, 3, nearer, settles=2400)
    assert all(means <= 1.5 * 100.0)
    assert all(means >= 0.4 * 100.0)


def test_a_target_out_of_the_noises_reach_is_never_missed_falsely() -> None:
    cells = (Cell("work", 0.02, 0.3), Cell("latency", 0.05, 0.6), Cell("both", 0.02, 0.0))
    means, errors = verdict.false_alarms(cells, 24.0, 1.0, 0.05, 4, 3, settles=600)
    assert means.tolist() == [0.0, 0.0, 0.0]
    assert all(errors > 0.0)


@pytest.mark.parametrize("cell", [Cell("work", 0.05, 0.6), Cell("latency", 0.3, 0.3)])
def test_harm_is_found_within_seconds(cell: Cell) -> None:
    noise, lanes = verdict.noise_of((cell,), 40, 9), Lanes(40, PolicySettings())
    called = np.zeros(40, bool)
    for at in range(1500):
        lanes.step(noise.step() + (math.log(2.0) if at >= 1480 else 0.0) - verdict.MARGINS)
        if at == 1479:
            assert lanes.degraded.sum() <= 1
        elif at >= 1480:
            called |= lanes.degraded
    assert called.mean() >= 0.9, "twice as slow, in twenty samples"


def _judged(scores: list[float]) -> list[Judgement]:
    """What the detector says of work at these multiples of the target, beside CPU pressure; it scatters by 15 %."""
    settings, state, told = PolicySettings(), DetectorState(), []
    target = Target(90.0, NONE, Band(100.0, 0.05, 50.0), None)
    noise = np.random.default_rng(3).normal(0.0, 0.15, 200)
    for at, score in enumerate([*(np.exp(noise) / 0.9), *scores]):
        sample = Sample("db", float(at), 1.0, work_rate_per_s=90.0 * score, cpu_some_pct=30.0)
        judged = judge(state, sample, performance(sample), target, Closed(), settings, period_s=1.0)  # type: ignore[arg-type]
        state = judged.state
        told.append(judged)
    return told[200:]


def test_samples_that_chance_may_explain_make_a_shortfall_likely_and_no_verdict() -> None:
    told = _judged([1.2, 0.8, 0.8])
    assert [j.likely for j in told] == [False, False, True]
    assert [j.verdict.health for j in told[1:]] == [Health.SUSPECT] * 2
    slight = _judged([1.2, *[0.99] * 12])
    assert not any(j.likely for j in slight), "a twentieth of what one sample scatters, twelve times"
