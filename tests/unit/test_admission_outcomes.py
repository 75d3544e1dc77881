"""What came of a change is said when the samples can tell, and not before."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector.judge import Target
from perphd.admission.review.outcomes import (
    MOST_STRIDE,
    PATIENCE,
    Came,
    Harmed,
    Pending,
    Setting,
    alive,
    cool_down,
    is_no_better,
    is_often_short,
    judge,
    next_stride,
    patience,
    room,
    still_short,
    units_between,
)
from perphd.admission.settings import PolicySettings, at_pace
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Action
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.domain.signals import Performance

NOTHING = Allocation(CpuGrant(4, 4))
DEMOTED = Allocation(CpuGrant(4, 4, IDLE))
OWN = Allocation(CpuGrant(4, 3, 100, exclusive=True))
CONFINED = Allocation(CpuGrant(4, 2, IDLE))
SETTINGS = PolicySettings()


def pending(action: Action, before: Allocation = DEMOTED, score: float | Unavailable = 1.0) -> Pending:
    return Pending(0.0, before, CONFINED, action, score)


@pytest.mark.parametrize(
    ("scores", "noise", "came"),
    [
        ([0.99], 0.05, Came.OPEN),  # one sample is no sample
        ([1.01, 1.02], 0.2, Came.HELPED),
        ([0.80, 0.82], 0.05, Came.TOO_LITTLE),
        ([0.90], 0.05, Came.TOO_LITTLE),  # unless it is plain
        ([0.90], 0.1, Came.OPEN),
        ([0.96], 0.01, Came.OPEN),  # or hardly matters
        ([0.90, 0.92], 0.3, Came.OPEN),  # a tenth is nothing where samples scatter by a third
        ([0.90, 0.92] * 3, 0.3, Came.TOO_LITTLE),  # but not if it stays so
        ([0.99, 0.98] * 3, 0.3, Came.HELPED),
    ],
)
def test_a_step_back_is_taken_back_when_it_is_clear(scores: list[float], noise: float, came: Came) -> None:
    assert judge(pending(Action.SHRINK), scores, noise, NOTHING, SETTINGS) is came


def test_a_rescue_is_worse_only_against_another_rescue() -> None:
    made_worse = pending(Action.GROW, OWN, 0.9)
    assert judge(made_worse, [0.6, 0.6], 0.05, NOTHING, SETTINGS) is Came.WORSE
    assert judge(made_worse, [0.82, 0.83], 0.3, NOTHING, SETTINGS) is Came.OPEN
    assert judge(pending(Action.GROW, NOTHING, 0.9), [0.6, 0.6], 0.05, NOTHING, SETTINGS) is Came.NO_HELP
    assert judge(pending(Action.GROW, NOTHING, 0.5), [0.7, 0.8], 0.05, NOTHING, SETTINGS) is Came.HELPED
    unknown = pending(Action.GROW, DEMOTED, Unavailable("not seen"))
    assert judge(unknown, [0.1, 0.1], 0.05, NOTHING, SETTINGS) is Came.HELPED


def test_what_only_takes_more_from_batch_is_never_called_worse() -> None:
    """If it is worse since, the trouble has grown: going back would be the last thing to do."""
    assert judge(pending(Action.GROW, DEMOTED, 0.9), [0.6, 0.6], 0.05, NOTHING, SETTINGS) is Came.NO_HELP


@given(
    stride=st.integers(1, MOST_STRIDE),
    before=st.floats(0.5, 3.0),
    after=st.floats(0.5, 3.0),
    doubt=st.floats(0.005, 0.3),
)
def test_steps_back_grow_only_where_there_is_room(
    stride: int, before: float, after: float, doubt: float
) -> None:
    found = next_stride(stride, before, after, doubt)
    assert 1 <= found <= min(2 * stride, MOST_STRIDE)
    if found > 1:
        # As many units again, each as dear as the last ones, leave the target met.
        cost = max(math.log(before / after), doubt) / stride
        assert math.log(after) - found * cost >= 0.0
    assert next_stride(stride, before, after, 2.0 * doubt) <= found
    assert next_stride(stride, Unavailable("not seen"), after, doubt) == 1


def test_room_is_what_latency_leaves_where_work_is_what_is_asked() -> None:
    target, asked = Target(90.0, 3.0), Performance(100.0, "sli", 1.2, "latency_p95_ms", 100.0)
    assert room(asked, target, 1.11) == pytest.approx(2.5)
    assert room(replace(asked, delay=4.0), target, 0.75) == pytest.approx(0.75)
    closed = replace(asked, load=Unavailable("a closed loop"))
    assert room(closed, target, 1.11) == 1.11, "the work rate tells"
    assert room(replace(asked, delay=NOT_MEASURED), target, 1.11) == 1.11
    assert room(asked, replace(target, delay=NOT_MEASURED), 1.11) == 1.11


def test_units_are_the_longest_way_of_any_dimension() -> None:
    levels = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    here = replace(CONFINED, llc_ways=5, mbw_pct=50)
    assert units_between(here, here, levels) == 1
    assert units_between(here, replace(here, llc_ways=2), levels) == 3
    assert units_between(here, replace(here, mbw_pct=100), levels) == 5
    assert units_between(here, replace(here, mbw_pct=100), ()) == 1
    assert units_between(here, replace(NOTHING, llc_ways=4, mbw_pct=60), levels) == 2


def test_what_stays_short_is_told_from_a_bad_spell() -> None:
    assert not still_short([0.9] * 2, 0.05, SETTINGS)  # too few to tell
    assert still_short([0.9] * 3, 0.05, SETTINGS)
    assert not still_short([0.98] * 5, 0.05, SETTINGS)
    assert still_short([0.95] * 6, 0.05, SETTINGS)
    assert not still_short([0.99] * 6, 0.05, SETTINGS)
    assert not still_short([0.95] * 6, 0.3, SETTINGS)


def test_a_step_that_has_not_begun_to_help_is_told_from_a_queue_that_is_worked_off() -> None:
    assert is_no_better(pending(Action.GROW, score=0.6), 0.5)
    assert is_no_better(pending(Action.EXPLORE, score=0.6), 0.61)
    assert not is_no_better(pending(Action.GROW, score=0.6), 0.7)
    assert not is_no_better(pending(Action.GROW, score=0.05), 0.02)  # the oldest requests come last
    assert not is_no_better(pending(Action.SHRINK, score=0.6), 0.5)
    assert not is_no_better(pending(Action.GROW, CONFINED, 0.6), 0.5)  # nothing but cache: it has to fill
    assert not is_no_better(pending(Action.GROW, score=Unavailable("not seen")), 0.5)


def test_too_often_below_is_too_little_whatever_the_mean() -> None:
    assert is_often_short([1.2, 0.97, 1.2, 1.2, 0.97, 1.2, 1.2, 0.97], PolicySettings())
    assert not is_often_short([1.2, 0.97, 1.2, 1.2, 0.99, 1.2, 1.2, 0.97], PolicySettings())
    assert not is_often_short([0.97, *[1.2] * 5, 0.97, 1.2, 0.97], PolicySettings())
    assert not is_often_short([], PolicySettings())
    fast = at_pace(PolicySettings(), 0.25)
    assert is_often_short([0.97] * 9, fast)
    assert not is_often_short([1.2, 0.97, 1.2] * 8, fast), "each mean of three is well above"
    assert not is_often_short([0.97] * 8, fast), "two whole means are not enough"


def test_regrets_double_and_end() -> None:
    cooldowns, first_s = cool_down((), CONFINED, 0.0, 60.0)
    cooldowns, second_s = cool_down(cooldowns, CONFINED, 100.0, 60.0)
    assert (first_s, second_s) == (60.0, 120.0)
    assert alive(cooldowns, 219.0) == (CONFINED,)
    assert alive(cooldowns, 220.0) == ()
    wait_s = 0.0
    for n in range(40):
        cooldowns, wait_s = cool_down(cooldowns, Allocation(CpuGrant(99, n + 1)), 0.0, 60.0)
    assert len(cooldowns) == 16
    assert wait_s == 60.0


def test_a_regret_is_forgiven_when_it_has_not_been_repeated_for_as_long_as_it_barred() -> None:
    cooldowns, _ = cool_down((), CONFINED, 0.0, 60.0)
    _, soon_s = cool_down(cooldowns, CONFINED, 119.0, 60.0)
    _, later_s = cool_down(cooldowns, CONFINED, 121.0, 60.0)
    assert (soon_s, later_s) == (120.0, 60.0)


def test_a_cache_step_is_watched_for_as_long_as_the_samples_leave_it_open() -> None:
    step = Pending(0.0, CONFINED, Allocation(CONFINED.cpu, llc_ways=6), Action.GROW, 0.80)
    assert judge(step, [0.81, 0.80], 0.05, NOTHING, SETTINGS) is Came.OPEN
    assert judge(step, [0.81, 0.80] * 3, 0.05, NOTHING, SETTINGS) is Came.NO_HELP
    assert judge(step, [0.70, 0.70], 0.05, NOTHING, SETTINGS) in (Came.NO_HELP, Came.WORSE)


def test_what_comes_faster_is_judged_on_as_much() -> None:
    usual = PolicySettings()
    assert at_pace(usual, 1.0) == usual
    assert at_pace(usual, 0.25).evaluate_ticks == 6
    assert at_pace(PolicySettings(evaluate_ticks=10), 0.25).evaluate_ticks == 10


def test_what_nothing_speaks_for_has_its_time_and_stands_only_if_it_helps() -> None:
    """A change of CPUs stands else, whatever comes of it."""
    by_model = pending(Action.EXPLORE, NOTHING, 0.5)
    unproven = replace(by_model, unproven=True)
    ticks = SETTINGS.evaluate_ticks
    assert judge(by_model, [0.5] * ticks, 0.01, NOTHING, SETTINGS) is Came.NO_HELP
    assert judge(unproven, [0.5] * ticks, 0.01, NOTHING, SETTINGS) is Came.OPEN
    assert judge(unproven, [0.5] * PATIENCE * ticks, 0.01, NOTHING, SETTINGS) is Came.NO_HELP
    assert judge(unproven, [0.6] * ticks, 0.01, NOTHING, SETTINGS) is Came.HELPED
    assert (by_model.must_help, unproven.must_help) == (False, True)
    assert replace(by_model, after=replace(NOTHING, llc_ways=3)).must_help


def test_a_step_of_several_is_taken_back_to_where_the_first_began() -> None:
    assert pending(Action.GROW).origin == DEMOTED
    assert replace(pending(Action.GROW), home=NOTHING).origin == NOTHING


def test_a_failure_is_remembered_until_it_has_stood_for_as_long_as_it_was_barred() -> None:
    """That nobody tried it proves nothing."""
    cooldowns, _ = cool_down((), CONFINED, 0.0, 60.0)
    assert cool_down(cooldowns, CONFINED, 600.0, 60.0, stood_s=20.0)[1] == 120.0
    assert cool_down(cooldowns, CONFINED, 600.0, 60.0, stood_s=60.0)[1] == 60.0
    assert cool_down(cooldowns, CONFINED, 600.0 + 64 * 60.0, 60.0, stood_s=20.0)[1] == 60.0, "programs change"


def test_less_of_what_failed_has_failed_as_well() -> None:
    held = replace(CONFINED, llc_ways=5)
    cooldowns, _ = cool_down((), held, 0.0, 60.0)
    assert cool_down(cooldowns, replace(held, llc_ways=4), 70.0, 60.0)[1] == 120.0
    assert cool_down(cooldowns, replace(held, llc_ways=6), 70.0, 60.0)[1] == 60.0


NO_LOAD = Unavailable("a closed loop")


@pytest.mark.parametrize(
    ("then", "now", "holds"),
    [
        (Setting(frozenset("a"), 100.0), Setting(frozenset("a"), 100.0), True),
        (Setting(frozenset("a"), 100.0), Setting(frozenset("a"), 150.0), True),
        (Setting(frozenset("a"), 100.0), Setting(frozenset("a"), 80.0), False),  # much less is asked of it
        (Setting(frozenset("a"), NO_LOAD), Setting(frozenset("a"), 80.0), True),
        (Setting(frozenset("a"), 100.0), Setting(frozenset("ab"), 100.0), False),  # beside other batch
        (Setting(frozenset("ab"), 100.0), Setting(frozenset("a"), 100.0), False),
    ],
)
def test_what_failed_is_barred_beside_the_same_batch_at_no_lower_load(
    then: Setting, now: Setting, holds: bool
) -> None:
    cooldowns, _ = cool_down((), CONFINED, 0.0, 60.0, then)
    cooldowns, _ = cool_down(cooldowns, CONFINED, 1.0, 60.0, then)
    assert alive(cooldowns, 70.0, now) == ((CONFINED,) if holds else ())
    assert alive(cooldowns, 50.0, now) == (CONFINED,), "at first it is barred whatever has changed"
    cooldowns, _ = cool_down((), CONFINED, 0.0, 60.0, then)
    assert cool_down(cooldowns, CONFINED, 70.0, 60.0, now, 1.0)[1] == (120.0 if holds else 60.0)
    assert Harmed().again(0.0, then, 60.0).here(10.0, now, 60.0) == int(holds)


def test_steps_back_that_harm_again_and_again_double_the_wait_for_the_next() -> None:
    here, harmed, waits = Setting(frozenset("a")), Harmed(), []
    for n in range(13):
        harmed = harmed.again(10.0 * n, here, 60.0)
        waits.append(patience((), harmed.here(10.0 * n, here, 60.0)))
    assert waits == [1.0] * 4 + [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0, 64.0]
    assert harmed.here(120.0 + 64 * 60.0, here, 60.0) == 0
    assert patience((CONFINED,), 5) == 3.0
