"""When samples are taken at the faster pace: while something is in flux, and where each of them tells something new."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from perphd.admission.detector.attention import LEAST_REQUESTS, TROUBLE_S, Attention, advance, next_in_s
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Cause, Decision, Health, Verdict
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from tests.unit.admission_world import topology

FAST_S, LASTS_S = 0.25, 4.0
NOTHING = Allocation(CpuGrant(4, 4, 100))


def lra(
    rate: float = 1000.0, sli: str | None = None, enforced: bool = True, there: bool = True
) -> WorkloadView:
    spec = WorkloadSpec("db", Kind.LRA, "/db", sli=SliSpec(sli) if sli is not None else None)
    sample = Sample("db", 10.0, 1.0, work_rate_per_s=rate)
    return WorkloadView(spec, sample if there else None, enforced=enforced)


def batch(name: str = "jobs", there: bool = True) -> WorkloadView:
    return WorkloadView(
        WorkloadSpec(name, Kind.BATCH, f"/{name}"), Sample(name, 10.0, 1.0) if there else None, enforced=True
    )


def snapshot(*views: WorkloadView) -> Snapshot:
    return Snapshot(0, 10.0, 1.0, HostView(topology(4)), views)


def decided(
    action: Action = Action.HOLD, health: Health = Health.HEALTHY, since_s: float = 9.0
) -> TargetState:
    verdict = Verdict(health, Cause.NONE, since_s, ())
    none = Unavailable("of no interest here")
    decision = Decision(10.0, "db", verdict, action, none, none, NOTHING, NOTHING, (), "", "perph")
    return TargetState({}, (decision,))


def after(target: TargetState, *views: WorkloadView, started: Collection[str] = ()) -> Attention:
    """What follows where all of them were there before."""
    known = frozenset(view.spec.name for view in views)
    return advance(Attention(there=known), snapshot(*views), target, FAST_S, LASTS_S, started=started)


def is_fast(attention: Attention) -> bool:
    return next_in_s(attention, 10.0, 1.0, FAST_S) == FAST_S


def test_a_quiet_host_is_sampled_at_its_usual_pace() -> None:
    quiet = after(decided(), lra(), batch())
    assert not is_fast(quiet)
    assert next_in_s(quiet, 10.0, 1.0, FAST_S) == 1.0


@pytest.mark.parametrize("action", [a for a in Action if a is not Action.HOLD])
def test_every_change_is_watched_closely_for_a_while(action: Action) -> None:
    changed = after(decided(action), lra(), batch())
    assert is_fast(changed)
    assert changed.why == f"db: effect of {action}"
    assert next_in_s(changed, 10.0 + LASTS_S, 1.0, FAST_S) == 1.0


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.DEGRADED])
def test_trouble_is_watched_closely_but_not_for_ever(health: Health) -> None:
    troubled = after(decided(health=health), lra(), batch())
    assert is_fast(troubled)
    assert troubled.why == f"db is {health}"
    assert not is_fast(after(decided(health=health, since_s=10.0 - TROUBLE_S - 1.0), lra(), batch()))


def test_who_comes_is_watched_closely_and_who_goes_is_not() -> None:
    here = snapshot(lra(), batch(), batch("more"))
    come = advance(Attention(there=frozenset({"db", "jobs"})), here, decided(), FAST_S, LASTS_S)
    assert is_fast(come)
    assert come.why == "more has started"
    gone = advance(come, snapshot(lra(), batch()), decided(), FAST_S, LASTS_S)
    assert gone.until_s == come.until_s
    assert gone.there == {"db", "jobs"}
    assert is_fast(after(decided(), lra(), batch(there=False), started=["jobs"])), (
        "the kernel told before any sample"
    )


@pytest.mark.parametrize(
    "view",
    [
        lra(sli="push"),
        lra(sli="file"),
        lra(sli="command"),
        lra(rate=0.9 * LEAST_REQUESTS / FAST_S),
        lra(enforced=False),
        lra(there=False),
    ],
    ids=["pushed", "file", "command", "few requests", "observed", "not there"],
)
def test_where_more_samples_would_tell_no_more_they_are_not_taken(view: WorkloadView) -> None:
    assert not is_fast(after(decided(Action.GROW), view, batch(), started=["jobs"]))


def test_indicators_that_are_asked_for_can_be_asked_for_more_often() -> None:
    assert is_fast(after(decided(Action.GROW), lra(sli="mysql"), batch()))
    counters = replace(lra(), sample=Sample("db", 10.0, 1.0))
    assert is_fast(after(decided(Action.GROW), counters, batch())), "an LRA that tells nothing has counters"


def test_a_pace_that_is_faster_anyway_stays() -> None:
    assert next_in_s(Attention(until_s=99.0), 10.0, 0.1, FAST_S) == 0.1
    assert next_in_s(Attention(), 10.0, 0.1, FAST_S) == 0.1
