"""The resource shaper over time, one pass after another. ``perphd.agent.shaping`` supplies its input and output.

Every pass updates the interval's peak use. With many workloads, a pass covers only some of them: the next
ones in order, those that ``schedule`` lets learn now, and those that ``is_notable`` selects. A plan is made

- when an interval has ended: its maxima enter the forecasters, a few workloads per pass, so that no pass takes long
  and all are done within ``LEARNING_SHARE`` of the next interval. Then ``shaper.shape`` decides.
- early, in pessimistic mode, when a workload outgrows its target or the total use exceeds the capacity: the forecast
  was wrong, and waiting for the end of the interval would leave the choice of a victim to the kernel.
- for some workloads alone, as soon as each has learned or outgrows its target, while the sizes of all others
  fit beside their reservations. In that case no workload has to make room, and the other sizes stay.
  If they do not fit, a plan of all is made when the interval has ended, or early.
- at once after a crash (an out-of-memory kill in the workload's group). The workload gets its reservation back, its
  history restarts with the grace of ``GRACE_SAMPLES`` intervals, and the fifth crash ends its shaping.

The forecast mean and bound come from the forecast worker (``ShapedSubject.ahead``), which runs all models and
returns the best one's forecast; an interval then ends when the worker has forecast the next one (``due``). If
the worker has no forecast, they come from a ladder with the two models that cost microseconds: without the
worker, with intervals other than the worker's, and for a workload that crashed or restarted until
``LEAST_OWN`` intervals have passed, because the worker's history goes further back. While the worker's
forecasts are used, the ladder learns values without scores: its bound then begins at three spreads. If the
ladder trusts no model, the reservation stays.

Limits. A target below the reservation becomes ``memory.low`` at the target and ``memory.high`` above it. A
target at the reservation sets no limit, so that K1 = 100 % changes nothing. ``memory.high`` is lifted as soon
as the workload stalls on memory or refaults, and returns after ``GUARD_INTERVALS`` intervals without either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.domain.forecast import MemoryForecast
from perphd.domain.quick import changer, maker
from perphd.domain.reading import Reading, Unavailable, value_or
from perphd.domain.sample import Quality, Sample
from perphd.forecast.ladder import due, forecast, noted, observed, refitted, with_fits
from perphd.forecast.series import LastValue, Smoothing
from perphd.sizing.shaper import (
    GREATEST_CRASHES,
    GUARD_FULL_RATIO,
    HIGH_MARGIN,
    Component,
    Demand,
    Preemption,
    Resource,
    Rung,
    ShaperMode,
    ShapingAction,
    ShapingPlan,
    memory_limits,
    shape,
)
from perphd.sizing.shaping_state import (
    EMPTY_BYTES,
    NOT_YET,
    ShapedLimits,
    ShapedMember,
    ShapedSubject,
    ShapingRules,
    ShapingState,
    ShapingStep,
    is_there,
)

MODELS: Final = (LastValue(), Smoothing())
KEPT: Final = max(model.history for model in MODELS) + 1
BOUND_SPREADS: Final = 3.0
"""Distance of the ladder's bound above its mean, in spreads."""
LEAST_OWN: Final = 60
GUARD_INTERVALS: Final = 3
LEARN_PER_LOOK: Final = 2
"""Minimum number of workloads that learn per pass; more learn if otherwise not all would be done in time."""
LEARNING_SHARE: Final = 1 / 2
FROZEN_INTERVALS: Final = 30
"""Intervals after which a workload that could not resume is ended: its owner can run it elsewhere."""
REFAULT_FACTOR: Final = 2.0
LEAST_REFAULTS_PER_S: Final = 100.0
"""Refaults count as rising if they exceed both twice their usual rate and this rate."""
ENDING_S: Final = 10.0
"""If a group still uses memory this many seconds after its processes were ended, it has not ended or runs again."""
USUAL_GAIN: Final = 0.1
JITTER_SHARE: Final = 0.05
"""Share of its length by which an interval may end early, because the time between two passes varies."""
LEAST_SHARE: Final = 0.5
"""Share of an interval that must have passed before the worker may end it: its first forecasts arrive at any time."""


_AS_FOUND: Final = ShapedLimits()
_UNUSED: Final = "it uses no memory"
_NO_FORECAST: Final = Unavailable("no forecaster reaches its required coverage")
_with_use = changer(ShapedMember, "greatest_bytes", "usual_refaults_per_s")
_with_plan = changer(ShapedMember, "target_bytes", "reason", "rung", "rung_intervals", "model", "proposed")
_closed = changer(ShapedMember, "greatest_bytes", "rung_intervals", "ladder")
_make_component, _make_demand = maker(Component), maker(Demand)


def advance(
    state: ShapingState,
    subjects: Sequence[ShapedSubject],
    capacity: Reading,
    rules: ShapingRules,
    now_s: float,
    due: bool | None = None,
    looked: Collection[str] | None = None,
) -> tuple[ShapingState, ShapingStep]:
    """The state and the limits after one pass at ``now_s``. A missing reading leads to no decision.

    ``due``: whether an interval ends now because the worker has forecast the next one; None: the clock
    decides. ``looked``: the workloads that the pass covers, including new ones; None: all. The others are
    unchanged.
    """
    if rules.mode is ShaperMode.OFF:
        return ShapingState(), ShapingStep({})
    notes: list[tuple[str, str]] = []
    by_name = {subject.name: subject for subject in subjects}
    fresh = subjects if looked is None else [by_name[name] for name in looked if name in by_name]
    members = dict(state.members)
    if members.keys() != by_name.keys():
        members = {name: members.get(name) or ShapedMember(now_s) for name in by_name}
    crashes = 0
    for subject in fresh:
        before = members[subject.name]
        member = members[subject.name] = _seen(before, subject, now_s, notes)
        crashes += member.crashed and not before.crashed
    closed_s, learning, pending = schedule(state, members, rules, now_s, due)
    for name in learning:
        if name in members:
            members[name] = _learned(members[name], by_name[name])
    regular = bool(learning) and not pending
    names, room, tight = _chosen(state, subjects, fresh, members, capacity, rules, learning, regular, crashes)
    planned = [by_name[name] for name in names]
    ends = list[tuple[str, str]]()
    if planned:
        present = [each for each in planned if is_there(each, members[each.name])]
        ranks = _ranks(present, members)
        components = [
            _component(each, members[each.name], ranks[each.application], now_s) for each in present
        ]
        plan = shape(components, {Resource.MEMORY: room}, rules.mode, rules.settings, early=not regular)
        acts = rules.mode in (ShaperMode.OPTIMISTIC, ShaperMode.PESSIMISTIC)
        ends = _decide(members, present, plan, acts, now_s, notes)
    if regular:
        for name, member in members.items():
            if member.crashed:
                members[name] = replace(member, crashed=False)
    limits = dict(state.limits)
    for name in limits.keys() - members.keys():
        del limits[name]
    for subject in (*planned, *(each for each in fresh if each.name not in names)):
        if is_there(subject, members[subject.name]):
            members[subject.name], limits[subject.name] = _limits(
                subject, members[subject.name], rules, now_s
            )
        else:
            limits.pop(subject.name, None)
    found = ShapingState(members, closed_s, pending, limits, tight)
    return found, ShapingStep(limits, tuple(ends), tuple(notes))


def schedule(
    state: ShapingState, names: Collection[str], rules: ShapingRules, now_s: float, due: bool | None = None
) -> tuple[float, tuple[str, ...], tuple[str, ...]]:
    """When the last interval ended, the workloads that learn from it in this pass, and those that learn later.

    A workload that has not learned from the last interval when the next one ends learns now, and that next
    interval ends a pass later. Otherwise, with passes as rare as intervals, the first workloads would learn
    in every pass, the others never.
    """
    closed_s = now_s if state.closed_s is None else state.closed_s
    passed = (now_s - closed_s) / rules.interval_s
    ended = passed >= 1 - JITTER_SHARE if due is None else due and passed >= LEAST_SHARE
    if ended and state.pending:
        return closed_s, state.pending, ()
    if ended:
        closed_s = now_s
    pending = tuple(names) if ended else state.pending
    left = math.ceil(len(names) * (1 - (now_s - closed_s) / (LEARNING_SHARE * rules.interval_s)))
    count = max(LEARN_PER_LOOK, len(pending) - max(0, left))
    return closed_s, pending[:count], pending[count:]


def is_notable(member: ShapedMember, sample: Sample) -> bool:
    """Whether a pass must cover a workload out of order: it has no room, stalls, or has a new group."""
    used, full, refaults = sample.memory_working_set_bytes, sample.memory_full_pct, sample.refaults_per_s
    if sample.quality and sample.has(Quality.RESTARTED):
        return True
    if not isinstance(used, Unavailable) and used >= EMPTY_BYTES:
        target = member.target_bytes
        if used > target if target is not None else member.greatest_bytes is None:
            return True
    if not isinstance(full, Unavailable) and full > 100.0 * GUARD_FULL_RATIO:
        return True
    return not isinstance(refaults, Unavailable) and refaults > LEAST_REFAULTS_PER_S


def _seen(
    member: ShapedMember, subject: ShapedSubject, now_s: float, notes: list[tuple[str, str]]
) -> ShapedMember:
    """The member with one more reading: its peak use, its crashes, its usual refaults."""
    if subject.restarted:  # the previous job makes room, not this one
        member = ShapedMember(now_s, crashes=member.crashes, history_restarted=True)
    if not isinstance(subject.kills, Unavailable):
        if member.kills is not None and subject.kills > member.kills:
            member = _crashed(member, subject, now_s)
            notes.append((subject.name, f"killed for lack of memory: {member.reason}"))
        if subject.kills != member.kills:
            member = replace(member, kills=subject.kills)
    used = subject.used_bytes
    if isinstance(used, Unavailable):
        return member
    if used < EMPTY_BYTES:
        return ShapedMember(
            now_s, kills=member.kills, crashes=member.crashes, reason=_UNUSED, history_restarted=True
        )
    if member.reason == _UNUSED:
        member = replace(member, reason=NOT_YET)
    if member.rung is Rung.END and now_s - member.began_s < ENDING_S:
        return member
    if member.rung is Rung.END:
        member = replace(member, rung=None, began_s=now_s, reason="it did not end")
    greatest = max(used, subject.peak_bytes, member.greatest_bytes or 0.0)
    usual = _usual(member.usual_refaults_per_s, subject.refaults_per_s)
    if greatest == member.greatest_bytes and usual == member.usual_refaults_per_s:
        return member
    return _with_use(member, greatest, usual)


def _usual(before: float | None, rate: Reading) -> float | None:
    """The usual rate of refaults; a burst moves it slowly."""
    if isinstance(rate, Unavailable) or before is None:
        return before if isinstance(rate, Unavailable) else rate
    return before + USUAL_GAIN * (min(rate, 2 * before + 1) - before)


def _crashed(member: ShapedMember, subject: ShapedSubject, now_s: float) -> ShapedMember:
    crashes = member.crashes + 1
    reason = (
        f"crash {crashes} of {GREATEST_CRASHES}: no longer shaped"
        if crashes >= GREATEST_CRASHES
        else f"crash {crashes} of {GREATEST_CRASHES}: the reservation is restored"
    )
    return ShapedMember(
        now_s,
        kills=member.kills,
        crashes=crashes,
        crashed=True,
        target_bytes=subject.reserved_bytes,
        reason=reason,
        history_restarted=True,
    )


def _learned(member: ShapedMember, subject: ShapedSubject) -> ShapedMember:
    """The member after an interval whose peak has entered the forecasters. Frozen intervals are skipped."""
    window, ladder = member.greatest_bytes, member.ladder
    if window is None or member.rung is Rung.FREEZE:
        pass
    elif _ahead(subject, member) is not None:
        ladder = noted(ladder, window, KEPT)
    else:
        ladder = observed(ladder, window, MODELS, KEPT)
        names = due(ladder, MODELS)
        if names:
            ladder = with_fits(ladder, refitted(ladder.values, names, MODELS))
        ladder = forecast(ladder, MODELS)
    return _closed(member, None, member.rung_intervals + 1, ladder)


def _chosen(
    state: ShapingState,
    subjects: Sequence[ShapedSubject],
    fresh: Sequence[ShapedSubject],
    members: Mapping[str, ShapedMember],
    capacity: Reading,
    rules: ShapingRules,
    learning: Sequence[str],
    regular: bool,
    crashes: int,
) -> tuple[Collection[str], float, bool]:
    """The workloads to plan now, the memory for them in bytes, and whether a plan of all workloads is due later."""
    if isinstance(capacity, Unavailable):
        return (), 0.0, state.tight and not regular
    early = rules.mode is ShaperMode.PESSIMISTIC and not regular
    outgrown = _outgrown(fresh, members) if early else []
    some = dict.fromkeys(name for name in (*outgrown, *learning) if name in members)
    room = _room_beside(some, subjects, members, capacity) if some else None
    tight = state.tight or (bool(learning) and room is None)
    crowded = early and room is None and (outgrown or crashes or _exceeds(subjects, members, capacity))
    if crowded or (regular and tight):
        return members.keys(), capacity, tight and not regular
    return ((), 0.0, tight) if room is None else (some, room, tight)


def _outgrown(fresh: Sequence[ShapedSubject], members: Mapping[str, ShapedMember]) -> list[str]:
    """Workloads that have no target yet or exceed it."""
    found = []
    for subject in fresh:
        member = members[subject.name]
        target = member.target_bytes
        small = target is None or (subject.shaped and target < value_or(subject.used_bytes, 0.0))
        if small and is_there(subject, member):
            found.append(subject.name)
    return found


def _room_beside(
    chosen: Collection[str],
    subjects: Sequence[ShapedSubject],
    members: Mapping[str, ShapedMember],
    capacity: float,
) -> float | None:
    """The room that the sizes of all others leave; None if the others may need more, or if a workload already
    makes room.
    """
    held = wanted = 0.0
    for subject in subjects:
        name, used = subject.name, subject.used_bytes
        member = members[name]
        if member.rung is not None:
            return None
        if isinstance(used, Unavailable) or used < EMPTY_BYTES:
            continue
        target = member.target_bytes
        if target is None or name in chosen:
            target = subject.reserved_bytes
        if used > target:
            target = used
        if name in chosen:
            wanted += target
        else:
            held += target
    return capacity - held if held + wanted <= capacity else None


def _exceeds(subjects: Sequence[ShapedSubject], members: Mapping[str, ShapedMember], capacity: float) -> bool:
    """Whether the present workloads use more than the capacity."""
    if sum(value_or(subject.used_bytes, 0.0) for subject in subjects) <= capacity:
        return False
    there = (subject for subject in subjects if is_there(subject, members[subject.name]))
    return sum(value_or(subject.used_bytes, 0.0) for subject in there) > capacity


def _ranks(present: Sequence[ShapedSubject], members: Mapping[str, ShapedMember]) -> dict[str, int]:
    """Applications in the order of placement: LRAs first, then by arrival."""
    began: dict[str, tuple[bool, float, str]] = {}
    for subject in present:
        key = (not subject.lra, members[subject.name].began_s, subject.application)
        began[subject.application] = min(key, began.get(subject.application, key))
    return {name: rank for rank, name in enumerate(sorted(began, key=lambda each: began[each]))}


def _component(subject: ShapedSubject, member: ShapedMember, rank: int, now_s: float) -> Component:
    ladder = member.ladder
    mean: Reading = _NO_FORECAST
    spread: Reading = _NO_FORECAST
    ahead = _ahead(subject, member)
    if ahead is not None:
        mean = ahead.mean_bytes
        spread = (ahead.bound_bytes - mean) / BOUND_SPREADS
    elif ladder.forecast is not None and ladder.bound is not None:
        mean = ladder.forecast.mean
        spread = max(0.0, ladder.bound - mean) / BOUND_SPREADS
    used = value_or(subject.used_bytes, 0.0)
    demand = _make_demand(
        reserved=subject.reserved_bytes,
        used=used,
        held=subject.reserved_bytes if member.target_bytes is None else member.target_bytes,
        mean=mean,
        spread=spread,
        least=subject.least_bytes,
        unreclaimable=subject.unreclaimable_bytes,
    )
    return _make_component(
        subject.name,
        subject.application,
        rank,
        subject.role,
        now_s - member.began_s,
        {Resource.MEMORY: demand},
        samples=ladder.seen,
        shaped=subject.shaped,
        degraded=subject.degraded,
        crashes=member.crashes,
        crashed=member.crashed,
        rung=member.rung,
        patient=member.rung is Rung.FREEZE and member.rung_intervals < FROZEN_INTERVALS,
    )


def _ahead(subject: ShapedSubject, member: ShapedMember) -> MemoryForecast | None:
    """The worker's forecast, if its history covers this workload's present form."""
    return None if member.history_restarted and member.ladder.seen < LEAST_OWN else subject.ahead


def _model(subject: ShapedSubject, member: ShapedMember) -> str:
    """The forecaster in use; empty if none."""
    ahead = _ahead(subject, member)
    return (member.ladder.acting or "") if ahead is None else ahead.model


def _decide(
    members: dict[str, ShapedMember],
    present: Sequence[ShapedSubject],
    plan: ShapingPlan,
    acts: bool,
    now_s: float,
    notes: list[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Apply a plan to the members. Returns the workloads that it ends, with the reason."""
    sizes = {size.component: size for size in plan.sizes}
    proposed: dict[str, tuple[ShapingAction, ...]] = {}
    for action in plan.proposed:
        proposed[action.component] = (*proposed.get(action.component, ()), action)
    ends: list[tuple[str, str]] = []
    for subject in present:
        member = members[subject.name]
        size, actions = sizes[subject.name], proposed.get(subject.name, ())
        preemption = next((each for each in actions if isinstance(each, Preemption)), None)
        rung = preemption.rung if preemption is not None and acts else None
        reason = preemption.reason if preemption is not None else size.reason
        intervals = member.rung_intervals
        if rung is not member.rung:
            intervals = 0
            what = "resumes" if rung is None else f"makes room: {rung.value}"
            notes.append((subject.name, f"{what} ({reason})"))
        if rung is Rung.END:
            ends.append((subject.name, reason))
            member = ShapedMember(
                now_s,
                kills=member.kills,
                crashes=member.crashes,
                rung=rung,
                reason=reason,
                history_restarted=True,
                proposed=actions,
            )
        else:
            model = _model(subject, member)
            member = _with_plan(member, size.target, reason, rung, intervals, model, actions)
        members[subject.name] = member
    return ends


def _limits(
    subject: ShapedSubject, member: ShapedMember, rules: ShapingRules, now_s: float
) -> tuple[ShapedMember, ShapedLimits]:
    """The present limits of one workload, and the member with its guard updated."""
    acts = rules.mode in (ShaperMode.OPTIMISTIC, ShaperMode.PESSIMISTIC)
    if not acts or not subject.shaped or subject.degraded or member.target_bytes is None:
        return member, _AS_FOUND
    if member.rung is Rung.FREEZE:
        return member, ShapedLimits(frozen=True)
    if member.rung is Rung.RECLAIM:
        fixed = subject.unreclaimable_bytes
        least = max(
            subject.least_bytes,
            value_or(subject.used_bytes, 0.0) if isinstance(fixed, Unavailable) else fixed,
        )
        return member, ShapedLimits(high_bytes=int(least * (1 + HIGH_MARGIN)))
    if member.target_bytes >= subject.reserved_bytes:
        return member, _AS_FOUND
    usual, rate = member.usual_refaults_per_s, subject.refaults_per_s
    rises = (
        usual is not None
        and not isinstance(rate, Unavailable)
        and rate > max(REFAULT_FACTOR * usual, LEAST_REFAULTS_PER_S)
    )
    limits = memory_limits(member.target_bytes, subject.full_ratio, rises)
    if limits.high_bytes is None:
        member = replace(member, guarded_until_s=now_s + GUARD_INTERVALS * rules.interval_s)
    high = limits.high_bytes if now_s >= member.guarded_until_s else None
    most = None
    if rules.hard_limit and high is not None:
        most = int(high * (1 + HIGH_MARGIN))
    return member, ShapedLimits(limits.low_bytes, high, most)
