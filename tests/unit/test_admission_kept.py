"""What kept a target is remembered, and comes before what the model only believes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.controller.lra_state import LraState
from perphd.admission.inference.inferer import asks_no_more, untouched
from perphd.admission.moves.rescue import KEPT_BEFORE
from perphd.admission.review.kept import LASTS_S, LEAST_SAMPLES, MOST, Kept, enough_here, noted
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import Setting
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Action, Decision
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, Touch, WorkloadSpec
from tests.unit.admission_world import topology
from tools.bench.policies.catalogue import entrant
from tools.bench.policies.worlds import world

NOTHING = untouched(8)
BATCH = frozenset({"pi"})


def confined(cores: int) -> Allocation:
    return replace(NOTHING, cpu=CpuGrant(8, cores, IDLE))


def lra(
    current: Allocation, now_s: float = 100.0, load: float = 50.0, beside: frozenset[str] = BATCH
) -> LraContext:
    stands_in: Any = SimpleNamespace(
        current=current,
        now_s=now_s,
        setting=lambda: Setting(beside, load),
        can_set=lambda it: it.llc_ways < 4,
    )
    return cast(LraContext, stands_in)


CPU, RESCTRL = frozenset({"cpus", "cpu_weight"}), frozenset({"llc_masks", "mba_pct"})


def context(
    touch: Touch = Touch.ALL,
    min_cores: float | None = None,
    knobs: frozenset[str] = CPU | RESCTRL,
    llc_ways: int = 8,
    mba: tuple[int, ...] = (10, 50, 100),
    cores: int = 8,
) -> LraContext:
    sample = Sample("db", 100.0, 1.0)
    db = WorkloadView(
        WorkloadSpec("db", Kind.LRA, "/db", touch=touch), sample, enforceable=CPU, enforced=True
    )
    batch = WorkloadSpec("pi", Kind.BATCH, "/pi", min_cores=min_cores)
    pi = WorkloadView(batch, replace(sample, workload="pi"), enforceable=knobs, enforced=True)
    host = HostView(topology(cores), llc_ways=llc_ways, mba_levels_pct=mba)
    return LraContext(PolicySettings(), Snapshot(0, 100.0, 1.0, host, (db, pi), None), db)


GOOD = [1.05] * LEAST_SAMPLES


def test_only_what_was_measured_long_enough_and_is_surely_enough_is_remembered() -> None:
    here = lra(confined(3))
    assert noted((), here, [], GOOD[1:], 0.02) == ()
    assert [k.allocation for k in noted((), here, [], GOOD, 0.02)] == [confined(3)]
    assert noted((), here, [], GOOD, 0.2) == (), "its samples scatter too much to tell"
    known = noted((), here, [], GOOD, 0.02)
    assert noted(known, here, [], [*GOOD, 0.5, 0.5], 0.02) == (), "it is not enough any more"


def test_scores_from_before_batch_came_do_not_count() -> None:
    """Doing nothing kept the target while nobody was there: that says nothing about doing nothing beside batch."""
    state = LraState.new(0.0).beside(quiet=True, batch=frozenset(), now_s=0.0)
    for score in GOOD:
        state = state.scored(score, score, 10)
    for quiet, batch in ((True, BATCH), (False, BATCH)):  # first it is there and idle
        state = state.beside(quiet, batch, now_s=6.0).scored(1.05, 1.05, 10)
        assert noted((), lra(NOTHING), [], state.scores_beside_batch, 0.02) == ()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["score", "change", "pi", "io", "both", "idle"]), st.integers(1, 9)),
        max_size=40,
    ),
    most=st.integers(1, 8),
)
def test_scores_beside_batch_are_those_since_it_or_the_setting_changed(
    steps: list[tuple[str, int]], most: int
) -> None:
    batches = {"pi": {"pi"}, "io": {"io"}, "both": {"pi", "io"}, "idle": set[str]()}
    state, expected, last = LraState.new(0.0), list[float](), "idle"
    for now_s, (kind, value) in enumerate(steps):
        if kind == "score":
            state = state.scored(float(value), float(value), most)
            expected = [*expected, float(value)][-most:]
        elif kind == "change":
            state, expected = replace(state, scores=(), rooms=()), []
        else:
            state = state.beside(kind == "idle", frozenset(batches[kind]) or BATCH, float(now_s))
            expected, last = expected if kind == last else [], kind
    assert state.scores_beside_batch == (() if last == "idle" else tuple(expected))


def test_the_recent_load_is_recorded_and_not_that_of_one_sample() -> None:
    (known,) = noted((), lra(confined(3), load=90.0), [48.0, 50.0, 51.0, 49.0, 90.0], GOOD, 0.02)
    assert known.setting.load == 50.0


def test_the_list_is_bounded_and_keeps_the_latest() -> None:
    known: tuple[Kept, ...] = ()
    for round_ in range(3):
        for cores in range(1, 8):
            for ways in (0, 2):
                current = replace(confined(cores), llc_ways=ways)
                known = noted(known, lra(current, now_s=float(round_)), [], GOOD, 0.02)
    assert len(known) == MOST
    assert known[-1].allocation == replace(confined(7), llc_ways=2)
    assert len({k.allocation for k in known}) == MOST


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, True),
        ({"now_s": 100.0 + LASTS_S + 1.0}, False),
        ({"load": 54.0}, True),
        ({"load": 56.0}, False),
        ({"load": 20.0}, True),
        ({"beside": frozenset({"pi", "another"})}, False),
        ({"current": confined(3)}, False),
        ({"current": confined(2)}, False),
    ],
)
def test_it_counts_only_in_circumstances_like_those(change: dict[str, Any], counts: bool) -> None:
    known = noted((), lra(confined(3)), [], GOOD, 0.02)
    now = lra(**{"current": confined(6), **change})
    assert enough_here(known, now, [now.setting().load], ()) == ((confined(3),) if counts else ())  # type: ignore[list-item]
    assert enough_here(known, now, [], (confined(3),)) == (), "never one in cooldown"


def test_what_cannot_be_set_any_more_is_left_out() -> None:
    known = noted((), lra(replace(confined(3), llc_ways=4)), [], GOOD, 0.02)
    assert known
    assert enough_here(known, lra(confined(6)), [50.0], ()) == ()


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        ({}, "cores, exclusive, ways, bandwidth"),
        ({"touch": Touch.BATCH}, "cores, ways, bandwidth"),
        ({"min_cores": 4.0}, "ways, bandwidth"),
        ({"knobs": RESCTRL}, "ways, bandwidth"),
        ({"knobs": CPU}, "cores, exclusive"),
        ({"llc_ways": 0}, "cores, exclusive, bandwidth"),
        ({"mba": ()}, "cores, exclusive, ways"),
        ({"cores": 6}, ""),
    ],
)
def test_an_allocation_that_was_in_force_may_not_be_possible_now(
    changes: dict[str, Any], possible: str
) -> None:
    every = {
        "cores": confined(3),
        "exclusive": Allocation(CpuGrant(8, 3, IDLE, exclusive=True)),
        "ways": replace(NOTHING, llc_ways=2),
        "bandwidth": replace(NOTHING, mbw_pct=50),
    }
    now = context(**changes)
    assert ", ".join(name for name, each in every.items() if now.can_set(each)) == possible


def test_a_rise_of_the_load_counts_at_once() -> None:
    known = noted((), lra(confined(3)), [50.0] * 5, GOOD, 0.02)
    assert enough_here(known, lra(confined(6)), [50.0, 50.0, 50.0, 50.0, 90.0], ()) == ()


def test_slightly_too_little_brings_back_what_was_enough() -> None:
    """In this world the model alone went from 8 of 10 cores for batch to 1, because a few samples were short."""
    scenario, who = world(5), entrant("perph")
    back: list[Decision] = []
    were: set[Allocation] = set()

    def watch(snapshot: Snapshot, target: TargetState) -> None:
        back.extend(d for d in target.decisions if d.action is Action.GROW and KEPT_BEFORE in d.reason)
        were.update(d.current for d in target.decisions)

    drawn = replace(scenario.drawn(0), duration_s=200.0)
    who.run(drawn, who.make(drawn, 0), 0, watch)
    assert back
    for decision in back:
        assert decision.chosen.cpu.batch_cores > 2
        assert not asks_no_more(decision.chosen, decision.current), "it protects more than what was in force"
        assert decision.chosen in were, "it had been in force"
