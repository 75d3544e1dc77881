"""What follows from a change: what it is to cure, when it is not waited for, when it is taken back and regretted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perphd.admission.controller import change_review
from perphd.admission.controller.lra_state import LraState
from perphd.admission.detector.judge import DetectorState, Judgement
from perphd.admission.moves.rescue import Move
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import Pending, alive
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Action, Cause, Health, Verdict
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import KNOBS, topology

NOW_S = 100.0
STRONG, WEAK = Allocation(CpuGrant(4, 2, IDLE)), Allocation(CpuGrant(4, 3, IDLE))
MORE_CACHE = replace(WEAK, llc_ways=4)
NOISE = 0.02


def lra(in_force: Allocation = WEAK, *, enforced: bool = True, since_s: float = 0.0) -> LraContext:
    sample = Sample("db", NOW_S, 1.0, load_per_s=50.0)
    view = WorkloadView(
        WorkloadSpec("db", Kind.LRA, "/db"), sample, protection=in_force, protected_since_s=since_s,
        enforceable=KNOBS, enforced=enforced,
    )  # fmt: skip
    return LraContext(PolicySettings(), Snapshot(0, NOW_S, 1.0, HostView(topology(4)), (view,), None), view)


def judged(score: float, *, blatant: bool = False, since_s: float = NOW_S) -> Judgement:
    verdict = Verdict(Health.DEGRADED, Cause.CPU, since_s, ())
    return Judgement(verdict, DetectorState(), score, blatant=blatant)


def after(action: Action, before: Allocation, now: Allocation, *scores: float) -> tuple[LraState, Pending]:
    pending = Pending(90.0, before, now, action, 0.8, load=50.0)
    return replace(LraState.new(0.0), pending=pending, scores=scores, stride=4), pending


def test_a_change_is_remembered_with_what_it_is_to_cure() -> None:
    known = replace(LraState.new(0.0), scores=(1.2, 1.1, 1.1, 1.1), slack_since_s=80.0)
    grow = Move(Action.GROW, STRONG, "")
    calm = change_review.decided(lra(), known, grow, judged(0.9))
    assert calm.pending is not None
    assert calm.pending.score_before == pytest.approx(1.1)
    assert replace(calm.pending, score_before=0.0) == Pending(NOW_S, WEAK, STRONG, Action.GROW, 0.0, 50.0)
    assert calm.scores == ()
    assert calm.slack_since_s is None
    sudden = change_review.decided(lra(), known, grow, judged(0.5, blatant=True)).pending
    assert sudden is not None
    assert sudden.score_before == 0.5  # not the good time before
    fresh = change_review.decided(lra(), LraState.new(0.0), grow, judged(0.9)).pending
    assert fresh is not None
    assert isinstance(fresh.score_before, Unavailable)
    assert change_review.decided(lra(), known, Move(Action.RELEASE, STRONG, ""), judged(0.9)).pending is None


def test_what_was_refused_is_not_asked_for_again_at_once() -> None:
    state, pending = after(Action.GROW, WEAK, STRONG)
    refused = change_review.in_force(lra(WEAK), state)
    assert refused.pending is None
    assert alive(refused.cooldowns, NOW_S) == (STRONG,)
    elsewhere = change_review.in_force(lra(MORE_CACHE), state)  # set by others: it was not refused
    assert elsewhere.pending is None
    assert elsewhere.cooldowns == ()
    assert change_review.in_force(lra(WEAK, enforced=False), state).cooldowns == ()  # nothing was tried
    assert change_review.in_force(lra(STRONG), state).pending == pending


def test_growth_is_not_waited_for_when_it_is_plainly_too_little() -> None:
    _, pending = after(Action.GROW, WEAK, STRONG)
    settling = lra(STRONG, since_s=NOW_S)
    assert (
        change_review.overtaken(settling, pending, judged(0.5, blatant=True), 70.0)
        == "its load continues to rise: "
    )
    assert change_review.overtaken(settling, pending, judged(0.9), 70.0) == ""
    still = change_review.overtaken(lra(STRONG), pending, judged(0.8, blatant=True), 70.0)
    assert (
        still == "the last step has not helped: "
    )  # settled: what it does is seen, the load does not matter
    assert change_review.overtaken(lra(STRONG), pending, judged(0.8, blatant=True, since_s=80.0), 50.0) == ""
    assert (
        change_review.overtaken(lra(STRONG), pending, judged(0.9, blatant=True), 50.0) == ""
    )  # it began to help


def test_growth_is_not_found_useless_before_a_whole_period_has_shown_it() -> None:
    _, pending = after(Action.GROW, WEAK, STRONG)
    bad = judged(0.8, blatant=True)
    early, whole = replace(pending, at_s=NOW_S - 0.75), replace(pending, at_s=NOW_S - 1.0)
    assert change_review.overtaken(lra(STRONG), early, bad, 50.0) == ""
    assert change_review.overtaken(lra(STRONG), whole, bad, 50.0) == "the last step has not helped: "


@pytest.mark.parametrize(("rooms", "stride"), [((2.4, 2.4), 2), ((1.3, 1.3), 1)])
def test_the_next_step_back_is_as_long_as_the_last_one_left_room(
    rooms: tuple[float, float], stride: int
) -> None:
    """A score that cannot exceed the load's shows no cost until it is too late."""
    state, pending = after(Action.SHRINK, STRONG, WEAK, 1.1, 1.1)
    pending = replace(pending, score_before=1.1, room_before=2.5)
    found = change_review.judge(lra(), replace(state, rooms=rooms, pending=pending), pending, NOISE)
    assert found is not None
    assert found.undo is None
    assert found.state.stride == stride


def test_what_room_there_was_is_remembered_with_a_change() -> None:
    known = LraState.new(0.0).scored(1.1, 2.0, 3).scored(1.1, 2.2, 3).scored(1.1, 30.0, 3)
    assert known.rooms == (2.0, 2.2, 10.0)
    decided = change_review.decided(lra(), known, Move(Action.SHRINK, WEAK, ""), judged(1.1))
    assert decided.pending is not None
    assert decided.pending.room_before == pytest.approx(2.2)
    assert decided.rooms == ()


def test_a_step_back_that_explains_the_trouble_is_only_taken_back() -> None:
    state, pending = after(Action.SHRINK, STRONG, WEAK)
    assert change_review.beyond(lra(), state, pending, 0.7, 50.0) == ""
    assert change_review.beyond(lra(), state, pending, 0.7, 70.0) == "its load has risen: "
    assert change_review.beyond(lra(), state, pending, 0.3, 50.0).startswith("far below its target")
    long = replace(pending, after=replace(WEAK, llc_ways=STRONG.llc_ways, cpu=CpuGrant(4, 4, IDLE)))
    assert change_review.beyond(lra(), state, long, 0.3, 50.0) == "", "several units explain any score"
    assert change_review.beyond(lra(), state, long, 0.3, 70.0) == "its load has risen: "
    doubted = replace(state, quarantine=replace(state.quarantine, until_s=NOW_S + 1.0))
    assert change_review.beyond(lra(), doubted, pending, 0.3, 50.0) == ""


def test_a_step_back_that_was_too_much_is_undone_and_regretted() -> None:
    state, pending = after(Action.SHRINK, STRONG, WEAK, 0.8, 0.8)
    came = change_review.judge(lra(), state, pending, NOISE)
    assert came is not None
    assert not came.outcome.kept
    assert came.undo is not None
    assert (came.undo.action, came.undo.chosen) == (Action.ROLLBACK, STRONG)
    assert "with a cooldown of 60 s" in came.undo.reason
    assert alive(came.state.cooldowns, NOW_S) == (WEAK,)
    assert came.state.pending is None
    assert came.state.stride == 1


def test_nothing_is_said_while_it_is_open_and_more_may_follow_what_left_room() -> None:
    state, pending = after(Action.SHRINK, STRONG, WEAK)
    assert change_review.judge(lra(), state, pending, NOISE) is None
    assert change_review.judge(lra(), replace(state, scores=(0.99,)), pending, 0.2) is None
    came = change_review.judge(lra(), replace(state, scores=(1.3, 1.3)), pending, NOISE)
    assert came is not None
    assert came.undo is None
    assert came.outcome.kept
    assert came.state.stride > 1
    assert came.state.cooldowns == ()


def test_what_was_replaced_in_vain_may_be_returned_to_at_once() -> None:
    state = change_review.decided(
        lra(),
        change_review.cool_down(lra(), LraState.new(0.0), WEAK)[0],
        Move(Action.GROW, STRONG, ""),
        judged(0.8),
    )
    assert alive(state.cooldowns, NOW_S) == (WEAK,)
    assert state.pending is not None
    pending = replace(state.pending, score_before=0.8)
    in_vain = change_review.judge(lra(STRONG), replace(state, scores=(0.8,) * 6), pending, NOISE)
    assert in_vain is not None
    assert in_vain.undo is None
    assert alive(in_vain.state.cooldowns, NOW_S) == ()
    helped = change_review.judge(lra(STRONG), replace(state, scores=(0.95,) * 6), pending, NOISE)
    assert helped is not None
    assert alive(helped.state.cooldowns, NOW_S) == (WEAK,)


@pytest.mark.parametrize(("now", "kept"), [(MORE_CACHE, False), (STRONG, True)])
def test_of_what_did_not_help_cache_goes_back_at_once_and_cores_stay(now: Allocation, kept: bool) -> None:
    state, pending = after(Action.GROW, WEAK, now, *[0.8] * 6)
    came = change_review.judge(lra(now), state, pending, NOISE)
    assert came is not None
    assert came.outcome.kept is kept
    assert (came.undo is None) is kept
    assert came.state.quarantine.failures == 1


def test_a_change_without_a_score_before_it_is_told_without_one() -> None:
    state, pending = after(Action.GROW, WEAK, STRONG, 1.09, 1.09, 1.09, 1.09)
    pending = replace(pending, score_before=Unavailable("no clean score before"))
    review = change_review.judge(lra(STRONG), replace(state, pending=pending), pending, NOISE)
    assert review is not None
    assert review.outcome.text.startswith("score 1.09, not known before: ")
