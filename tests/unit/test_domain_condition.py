"""Progress and condition: what batch got done, and what is said of it and of LRAs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.inference.inferer import untouched
from perphd.domain.allocation import Settings
from perphd.domain.condition import BatchCondition, LraCondition, batch_condition, lra_condition
from perphd.domain.decision import Action, Cause, Decision, Health, Verdict
from perphd.domain.progress import NO_PROGRESS, OVER_S, Progress, advance
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample

NO_PSI = Unavailable("no PSI")
HEALTHY = Decision(
    at_s=1.0,
    workload="db",
    verdict=Verdict(Health.HEALTHY, Cause.NONE, 1.0, ()),
    action=Action.HOLD,
    target_work=90.0,
    target_delay=2.0,
    current=untouched(2),
    chosen=untouched(2),
    candidates=(),
    reason="",
    policy="perph",
)


def batch(cores: Reading, waits_pct: Reading = 0.0, at_s: float = 1.0, **more: Reading) -> Sample:
    sample = Sample("pi", at_s, 1.0, cpu_usage_cores=cores, cpu_some_pct=waits_pct, threads=4.0)
    return replace(sample, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "frozen", "condition"),
    [
        (batch(0.5, 90.0), False, BatchCondition.RUNNING),
        (batch(0.001, 95.0), False, BatchCondition.STARVED),
        (batch(0.001, 5.0), False, BatchCondition.IDLE),
        (batch(0.0, NO_PSI), False, BatchCondition.IDLE),
        (batch(0.0, NO_PSI, run_delay_cores=3.0), False, BatchCondition.STARVED),
        (batch(NOT_MEASURED, 95.0), False, BatchCondition.IDLE),
        (batch(0.2, 95.0, cpu_throttled_pct=80.0), False, BatchCondition.THROTTLED),
        (batch(0.0, 95.0), True, BatchCondition.FROZEN),
        (batch(0.0, 0.0, threads=0.0), False, BatchCondition.GONE),
        (replace(batch(0.5), quality=(Quality.GONE,)), False, BatchCondition.GONE),
        (None, False, BatchCondition.GONE),
    ],
)
def test_what_batch_does(sample: Sample | None, frozen: bool, condition: BatchCondition) -> None:
    assert batch_condition(sample, Settings(frozen=True) if frozen else Settings()) is condition


def lra(**readings: Reading) -> Sample:
    return Sample("db", 1.0, 1.0, **{"cpu_usage_cores": 0.5, **readings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "decision", "condition"),
    [
        (lra(work_rate_per_s=100.0, latency_p95_ms=1.0), HEALTHY, None),
        (lra(work_rate_per_s=80.0, latency_p95_ms=1.0), HEALTHY, LraCondition.BELOW_TARGET),
        (lra(work_rate_per_s=100.0, latency_p95_ms=3.0), HEALTHY, LraCondition.BELOW_TARGET),
        (
            lra(work_rate_per_s=100.0),
            replace(HEALTHY, target_work=NOT_MEASURED, target_delay=NOT_MEASURED),
            None,
        ),
        (lra(work_rate_per_s=80.0), None, None),
        (
            lra(work_rate_per_s=80.0),
            replace(HEALTHY, verdict=replace(HEALTHY.verdict, health=Health.DEGRADED)),
            None,
        ),
        (lra(work_rate_per_s=0.0), HEALTHY, LraCondition.NO_LOAD),
        (lra(work_rate_per_s=0.0, load_per_s=0.0, io_some_pct=90.0), HEALTHY, LraCondition.NO_LOAD),
        (lra(work_rate_per_s=0.0, load_per_s=5.0), HEALTHY, LraCondition.STALLED),
        (lra(work_rate_per_s=0.0, io_some_pct=90.0), HEALTHY, LraCondition.STALLED),
        (lra(work_rate_per_s=NOT_MEASURED), replace(HEALTHY, target_work=NOT_MEASURED), None),
        (None, HEALTHY, None),
    ],
)
def test_what_health_does_not_say(
    sample: Sample | None, decision: Decision | None, condition: LraCondition | None
) -> None:
    assert lra_condition(sample, decision, "p95") is condition


@given(
    used=st.lists(
        st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 100.0), st.floats(0.1, 5.0)), min_size=1, max_size=60
    )
)
def test_progress_is_the_mean_of_the_last_ten_seconds(used: list[tuple[float, float, float]]) -> None:
    progress, at_s, starved_from = NO_PROGRESS, 0.0, None
    taken: list[tuple[float, float, float]] = []
    for cores, waits, seconds in used:
        at_s += seconds
        sample = replace(batch(cores, waits, at_s), interval_s=seconds)
        progress = advance(progress, sample)
        taken.append((at_s, cores, seconds))
        starves = cores < 0.01 and waits >= 50.0
        starved_from = None if not starves else (at_s - seconds if starved_from is None else starved_from)
    recent = [(cores, seconds) for end_s, cores, seconds in taken if end_s > at_s - OVER_S + 1e-6]
    cores_now = progress.cores(at_s)
    assert available(cores_now)
    assert cores_now == pytest.approx(sum(c * s for c, s in recent) / sum(s for _, s in recent))
    assert progress.starved_s(at_s) == pytest.approx(0.0 if starved_from is None else at_s - starved_from)


def test_a_group_that_is_new_or_gone_begins_anew() -> None:
    known = advance(NO_PROGRESS, batch(0.5))
    assert known.spells
    for quality in (Quality.GONE, Quality.RESTARTED, Quality.FIRST):
        assert advance(known, replace(batch(0.5), quality=(quality,))) == Progress()
    assert advance(known, None) == Progress()
    assert advance(known, batch(NOT_MEASURED)) == known
    assert not available(NO_PROGRESS.cores(1.0))
