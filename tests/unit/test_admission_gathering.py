"""Few events are gathered until they can be judged: nothing is lost, nothing of before a change is mixed in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector.attention import Attention, advance, next_in_s
from perphd.admission.detector.gathering import LONGEST_S, NOTHING_GATHERED, Awaiting, Gathered, gather
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Cause, Decision, Health, Verdict
from perphd.domain.policy import Band, HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample, is_short, lies_after, reach_s
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from tests.unit.admission_world import topology

NONE_YET = Unavailable("the source reports every 1 s")


def sample(
    at_s: float, events: float, seconds: float = 1.0, p95_ms: Reading = NOT_MEASURED, **more: object
) -> Sample:
    told = {
        "work_rate_per_s": events / seconds,
        "work_events": events,
        "sli_window_s": seconds,
        "latency_p95_ms": p95_ms,
        "latency_events": events if available(p95_ms) else NOT_MEASURED,
        "cpu_usage_cores": 1.0,
    }
    return Sample("db", at_s, seconds, **(told | more))  # type: ignore[arg-type]


def between(at_s: float, seconds: float = 0.25, cpu: float = 1.0, **more: object) -> Sample:
    quality = (Quality.BETWEEN,)
    return Sample("db", at_s, seconds, cpu, work_rate_per_s=NONE_YET, quality=quality, **more)  # type: ignore[arg-type]


def take(
    samples: list[Sample], usual: Band | None = None, settled_s: float = -math.inf
) -> tuple[Gathered, list[Sample | Awaiting]]:
    state, found = NOTHING_GATHERED, []
    for one in samples:
        state, item = gather(state, one, usual, "p95", settled_s, 1.0)
        found.append(item)
    return state, found


def test_enough_events_pass_as_they_are() -> None:
    one = sample(1.0, 100.0)
    state, found = take([one])
    assert found == [one]
    assert state == NOTHING_GATHERED


def test_few_events_are_one_sample_when_there_are_enough() -> None:
    state, found = take(
        [sample(1.0, 37.0, p95_ms=10.0), sample(2.0, 23.0, p95_ms=20.0), sample(3.0, 60.0, p95_ms=5.0)]
    )
    assert [item.text for item in found[:2] if isinstance(item, Awaiting)] == [
        "waiting for enough events: 37 of 100",
        "waiting for enough events: 60 of 100",
    ]
    whole = found[2]
    assert isinstance(whole, Sample)
    assert (whole.at_s, whole.interval_s, whole.work_events, whole.work_rate_per_s) == (3.0, 3.0, 120.0, 40.0)
    assert whole.latency_p95_ms == pytest.approx((37 * 10 + 23 * 20 + 60 * 5) / 120)
    assert state == NOTHING_GATHERED


def test_p99_takes_more() -> None:
    one = sample(1.0, 300.0, latency_p99_ms=9.0, latency_events=300.0)
    _, found = gather(NOTHING_GATHERED, one, None, "p99", -math.inf, 1.0)
    assert found == Awaiting("waiting for enough events: 300 of 500", 300.0, 500.0)


def test_that_fewer_come_than_usual_is_no_reason_to_wait_for_longer() -> None:
    usual = Band(200.0, 0.05, 10.0)
    one = sample(1.0, 3.0)
    assert take([one], usual)[1] == [one], "3 of 200 expected are news"
    _, found = take([sample(float(n), 0.0) for n in range(1, 11)])
    assert all(isinstance(item, Awaiting) for item in found[:-1])
    assert isinstance(found[-1], Sample), f"and after {LONGEST_S:g} s it is judged as it is"


def test_what_lies_between_two_reports_is_one_sample_with_the_report() -> None:
    report = sample(1.0, 400.0, 0.25, sli_window_s=1.0, work_rate_per_s=400.0, cpu_usage_cores=3.0)
    _, found = take([between(0.25), between(0.5), between(0.75), report])
    assert [item.text for item in found[:3] if isinstance(item, Awaiting)] == [
        "waiting for the source: the source reports every 1 s"
    ] * 3
    whole = found[3]
    assert isinstance(whole, Sample)
    assert (whole.interval_s, whole.work_rate_per_s, whole.work_events) == (1.0, 400.0, 400.0)
    assert whole.cpu_usage_cores == pytest.approx(1.5), "of the same second as its work"
    assert whole.quality == ()


def test_what_lies_before_a_change_is_not_mixed_with_what_lies_after() -> None:
    _, found = take([sample(1.0, 60.0), sample(2.0, 60.0)], settled_s=1.0)
    assert isinstance(found[1], Awaiting)
    settling = sample(1.0, 60.0, quality=(Quality.SETTLING,))
    _, found = take([settling, sample(2.0, 60.0)])
    assert found[1] == Awaiting("waiting for enough events: 60 of 100", 60.0, 100.0)


def test_events_that_are_not_told_are_not_waited_for() -> None:
    one = Sample("db", 1.0, 1.0, work_rate_per_s=5.0)
    assert take([one])[1] == [one]


@given(st.lists(st.tuples(st.floats(0.1, 2.0), st.integers(0, 150)), min_size=1, max_size=40))
def test_no_event_is_lost_or_counted_twice(steps: list[tuple[float, int]]) -> None:
    at_s, samples = 0.0, []
    for seconds, events in steps:
        at_s += seconds
        samples.append(sample(at_s, float(events), seconds))
    state, found = take(samples)
    judged = [item for item in found if isinstance(item, Sample)]
    rest = [state.sample] if state.sample is not None else []
    told = [(s.work_events, s.interval_s, s.work_rate_per_s) for s in (*judged, *rest)]
    assert sum(e for e, _, _ in told if available(e)) == sum(events for _, events in steps)
    assert sum(seconds for _, seconds, _ in told) == pytest.approx(at_s)
    assert all(available(r) and available(e) and r * s == pytest.approx(e) for e, s, r in told)


def test_a_report_reaches_back_over_its_window_and_what_came_late() -> None:
    report = sample(10.0, 400.0, 0.25, sli_window_s=1.0, sli_resolution_s=1.0)
    assert reach_s(report) == 2.0
    assert lies_after(report, 8.0, 0.25)
    assert not lies_after(report, 8.5, 0.25)
    assert lies_after(sample(10.0, 400.0, 0.25, sli_resolution_s=0.0), 9.75, 0.25)
    assert is_short(report, 1.0), "its other readings are of a quarter of a second"


@pytest.mark.parametrize(
    ("every_s", "fast"),
    [(1.0, False), (0.5, False), (0.25, True), (0.0, True), (Unavailable("not known yet"), True)],
)
def test_a_source_is_not_sampled_faster_than_it_reports(every_s: Reading, fast: bool) -> None:
    spec = WorkloadSpec("db", Kind.LRA, "/db", sli=SliSpec("postgresql"))
    view = WorkloadView(spec, sample(10.0, 1000.0, sli_resolution_s=every_s), enforced=True)
    nothing = Allocation(CpuGrant(4, 4, 100))
    verdict = Verdict(Health.DEGRADED, Cause.NONE, 9.0, ())
    none = Unavailable("of no interest here")
    decision = Decision(10.0, "db", verdict, Action.GROW, none, none, nothing, nothing, (), "", "perph")
    known = Attention(there=frozenset({"db"}))
    after = advance(
        known, Snapshot(0, 10.0, 1.0, HostView(topology(4)), (view,)), TargetState({}, (decision,)), 0.25, 4.0
    )
    assert (next_in_s(after, 10.0, 1.0, 0.25) == 0.25) is fast
