"""The resource shaper over time: from one look at the workloads to the next. ``perphd.agent.shaping`` is its shell.

At every look the greatest use of the interval is updated. A plan is made

- when an interval has ended: its maxima enter the forecasters, ``LEARN_PER_LOOK`` workloads at a look, so that no look
  takes long, and then ``shaper.shape`` decides;
- early, in pessimistic mode, when a workload outgrows its target or the use of all exceeds the capacity: the forecast
  was wrong, and waiting for the end of the interval would leave the choice of a victim to the kernel;
- at once after a crash (an out-of-memory kill in the workload's group). The workload gets its reservation back, its
  history begins anew with the grace of ``GRACE_SAMPLES`` intervals, and the fifth crash ends its shaping.

The forecast mean and bound come from the forecast worker (``Subject.ahead``), which runs all models and gives those of
the best; an interval then ends when the worker has forecast the next one (``due``). Where it says nothing, they come
from a ladder with the two models that cost microseconds, which runs beside it in any case: without the worker, in
intervals that are not the worker's, and for a workload that crashed or began anew until ``LEAST_OWN`` intervals have
passed, because the worker's history goes further back. Where the ladder trusts no model, the reservation stands.

Limits. A target below the reservation becomes ``memory.low`` at the target and ``memory.high`` above it; a target at
the reservation becomes nothing, so that K1 = 100 % changes nothing. ``memory.high`` is lifted as soon as the workload
stalls on memory or reads given-up pages again, and returns after ``GUARD_INTERVALS`` intervals without either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.domain.forecast import MemoryForecast
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.forecast.ladder import SeriesLadder, due, forecast, observed, refitted, with_fits
from perphd.forecast.series import LastValue, Smoothing
from perphd.sizing.shaper import (
    GREATEST_CRASHES,
    HIGH_MARGIN,
    Component,
    Demand,
    Mode,
    Preemption,
    Resource,
    Role,
    Rung,
    ShaperSettings,
    ShapingPlan,
    memory_limits,
    shape,
)

MODELS: Final = (LastValue(), Smoothing())
BOUND_SPREADS: Final = 3.0
"""The ladder's bound stands this number of spreads above its mean."""
LEAST_OWN: Final = 60
GUARD_INTERVALS: Final = 3
LEARN_PER_LOOK: Final = 8
EMPTY_BYTES: Final = 256 << 10
"""A group that uses less holds no process worth a size."""
FROZEN_INTERVALS: Final = 30
"""A workload that could not resume for so many intervals is ended: its owner can run it elsewhere."""
REFAULT_FACTOR: Final = 2.0
LEAST_REFAULTS_PER_S: Final = 100.0
"""Refaults rise when they exceed twice their usual rate, and at least this one."""
ENDING_S: Final = 10.0
"""A group that still uses memory this long after its processes were ended has not ended, or runs again."""
USUAL_GAIN: Final = 0.1
JITTER_SHARE: Final = 0.05
"""An interval may end this share early: looks jitter."""
LEAST_SHARE: Final = 0.5
"""... and one that the worker ends, this early: its first forecasts come at any time."""


@dataclass(frozen=True, slots=True)
class ShapingRules:
    """What the operator chose. ``hard_limit``: ``memory.max`` follows the target too."""

    mode: Mode
    interval_s: float
    settings: ShaperSettings
    hard_limit: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload as it is now.

    ``shaped``: its owner gave it to the shaper; without that it is advised. ``kills``: out-of-memory kills in its group
    so far. ``full_ratio``: share of time in which all its tasks waited for memory. ``restarted``: its group is another
    one than at the last look, with the same path. ``ahead``: the worker's forecast of the interval that begins now.
    """

    name: str
    application: str
    lra: bool
    role: Role
    reserved_bytes: float
    used_bytes: Reading
    least_bytes: float = 0.0
    shaped: bool = True
    degraded: bool = False
    unreclaimable_bytes: Reading = NOT_MEASURED
    kills: Reading = NOT_MEASURED
    full_ratio: Reading = NOT_MEASURED
    refaults_per_s: Reading = NOT_MEASURED
    restarted: bool = False
    ahead: MemoryForecast | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """What is remembered of one workload.

    ``target_bytes`` None: none decided yet. ``anew``: its history began again here. ``model``: which forecast counted.
    """

    began_s: float
    greatest_bytes: float | None = None
    window_bytes: float | None = None
    ladder: SeriesLadder = field(default_factory=SeriesLadder)
    kills: float | None = None
    crashes: int = 0
    crashed: bool = False
    target_bytes: float | None = None
    reason: str = "no interval has ended yet"
    rung: Rung | None = None
    usual_refaults_per_s: float | None = None
    guarded_until_s: float = -1.0
    rung_intervals: int = 0
    anew: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ShapingState:
    """All workloads, the end of the last interval, the last plan, and whose maximum is yet to be learned from."""

    members: Mapping[str, Member] = field(default_factory=dict)
    closed_s: float | None = None
    plan: ShapingPlan | None = None
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShapedLimits:
    """What one workload is to have; None: as it was found."""

    low_bytes: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class ShapingStep:
    """What follows from one look: limits in force, workloads to end with the reason, and sentences to announce."""

    limits: Mapping[str, ShapedLimits]
    ends: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


def advance(
    state: ShapingState,
    subjects: Sequence[Subject],
    capacity: Reading,
    rules: ShapingRules,
    now_s: float,
    due: bool | None = None,
) -> tuple[ShapingState, ShapingStep]:
    """The state and the limits after one look at ``now_s``. A missing reading decides nothing.

    ``due``: whether an interval ends now because the worker has forecast the next one; None: the clock says when.
    """
    if rules.mode is Mode.OFF:
        return ShapingState(), ShapingStep({})
    notes: list[tuple[str, str]] = []
    members = {
        subject.name: _seen(state.members.get(subject.name), subject, now_s, notes) for subject in subjects
    }
    closed_s = now_s if state.closed_s is None else state.closed_s
    passed = (now_s - closed_s) / rules.interval_s
    ended = passed >= 1 - JITTER_SHARE if due is None else due and passed >= LEAST_SHARE
    pending = state.pending
    if ended:
        closed_s, pending = now_s, tuple(members)
        members = {name: _closed(member) for name, member in members.items()}
    learning, pending = pending[:LEARN_PER_LOOK], pending[LEARN_PER_LOOK:]
    members |= {name: _learned(members[name]) for name in learning if name in members}
    regular = bool(learning) and not pending
    present = [subject for subject in subjects if is_there(subject, members[subject.name])]
    plan = state.plan
    ends: list[tuple[str, str]] = []
    early = not regular and _overtaken(present, members, capacity, rules.mode)
    if (regular or early) and not isinstance(capacity, Unavailable):
        ranks = _ranks(present, members)
        components = [
            _component(subject, members[subject.name], ranks[subject.application], now_s)
            for subject in present
        ]
        plan = shape(components, {Resource.MEMORY: capacity}, rules.mode, rules.settings, early=early)
        acts = rules.mode in (Mode.OPTIMISTIC, Mode.PESSIMISTIC)
        members, ends = _decided(members, present, plan, acts, now_s, notes)
        if regular:
            members = {name: replace(member, crashed=False) for name, member in members.items()}
    limits = {}
    for subject in present:
        members[subject.name], limits[subject.name] = _limits(subject, members[subject.name], rules, now_s)
    return ShapingState(members, closed_s, plan, pending), ShapingStep(limits, tuple(ends), tuple(notes))


def _seen(before: Member | None, subject: Subject, now_s: float, notes: list[tuple[str, str]]) -> Member:
    """The member after one reading: its greatest use, its crashes, its usual refaults."""
    member = before or Member(now_s)
    if subject.restarted:  # who makes room is the job that was there before, not this one
        member = Member(now_s, crashes=member.crashes, anew=True)
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
        reason = "it uses no memory"
        return Member(now_s, kills=member.kills, crashes=member.crashes, reason=reason, anew=True)
    if member.rung is Rung.END and now_s - member.began_s < ENDING_S:
        return member
    if member.rung is Rung.END:
        member = replace(member, rung=None, began_s=now_s, reason="it did not end")
    greatest = max(used, member.greatest_bytes or 0.0)
    usual = _usual(member.usual_refaults_per_s, subject.refaults_per_s)
    if greatest == member.greatest_bytes and usual == member.usual_refaults_per_s:
        return member  # most looks change nothing, and a copy costs more than all the rest
    return replace(member, greatest_bytes=greatest, usual_refaults_per_s=usual)


def _usual(before: float | None, rate: Reading) -> float | None:
    """The usual rate of refaults, which a burst moves slowly."""
    if isinstance(rate, Unavailable) or before is None:
        return before if isinstance(rate, Unavailable) else rate
    return before + USUAL_GAIN * (min(rate, 2 * before + 1) - before)


def _crashed(member: Member, subject: Subject, now_s: float) -> Member:
    crashes = member.crashes + 1
    reason = (
        f"crash {crashes} of {GREATEST_CRASHES}: no longer shaped"
        if crashes >= GREATEST_CRASHES
        else f"crash {crashes} of {GREATEST_CRASHES}: the reservation is restored"
    )
    return Member(
        now_s,
        kills=member.kills,
        crashes=crashes,
        crashed=True,
        target_bytes=subject.reserved_bytes,
        reason=reason,
        anew=True,
    )


def _closed(member: Member) -> Member:
    """The member after an interval, whose greatest use is to be learned from. Frozen time teaches nothing."""
    window = None if member.rung is Rung.FREEZE else member.greatest_bytes
    return replace(member, rung_intervals=member.rung_intervals + 1, window_bytes=window, greatest_bytes=None)


def _learned(member: Member) -> Member:
    """The member whose last window has entered the forecasters."""
    if member.window_bytes is None:
        return member
    ladder = observed(member.ladder, member.window_bytes, MODELS)
    names = due(ladder, MODELS)
    if names:
        ladder = with_fits(ladder, refitted(ladder.values, names, MODELS))
    return replace(member, window_bytes=None, ladder=forecast(ladder, MODELS))


def is_there(subject: Subject, member: Member) -> bool:
    """Whether the workload runs, and is not about to end."""
    return (
        not isinstance(subject.used_bytes, Unavailable)
        and subject.used_bytes >= EMPTY_BYTES
        and member.rung is not Rung.END
    )


def _overtaken(
    present: Sequence[Subject], members: Mapping[str, Member], capacity: Reading, mode: Mode
) -> bool:
    """Whether the plan is overtaken by events, so that another one is due before the interval ends."""
    if mode is not Mode.PESSIMISTIC or isinstance(capacity, Unavailable):
        return False
    if any(members[subject.name].crashed for subject in present):
        return True
    used = {subject.name: number(subject.used_bytes) for subject in present}
    if sum(used.values()) > capacity:
        return True
    for subject in present:
        target = members[subject.name].target_bytes
        if subject.shaped and target is not None and target < used[subject.name]:
            return True
    return any(members[subject.name].target_bytes is None for subject in present)


def _ranks(present: Sequence[Subject], members: Mapping[str, Member]) -> dict[str, int]:
    """Applications in the order in which they are placed: LRAs first, then by arrival."""
    began: dict[str, tuple[bool, float, str]] = {}
    for subject in present:
        key = (not subject.lra, members[subject.name].began_s, subject.application)
        began[subject.application] = min(key, began.get(subject.application, key))
    return {name: rank for rank, name in enumerate(sorted(began, key=lambda each: began[each]))}


def _component(subject: Subject, member: Member, rank: int, now_s: float) -> Component:
    ladder = member.ladder
    mean: Reading = Unavailable("no forecaster reaches its coverage")
    spread: Reading = mean
    ahead = _ahead(subject, member)
    if ahead is not None:
        mean = ahead.mean_bytes
        spread = (ahead.bound_bytes - mean) / BOUND_SPREADS
    elif ladder.forecast is not None and ladder.bound is not None:
        mean = ladder.forecast.mean
        spread = max(0.0, ladder.bound - mean) / BOUND_SPREADS
    used = number(subject.used_bytes)
    demand = Demand(
        reserved=subject.reserved_bytes,
        used=used,
        held=subject.reserved_bytes if member.target_bytes is None else member.target_bytes,
        mean=mean,
        spread=spread,
        least=subject.least_bytes,
        unreclaimable=subject.unreclaimable_bytes,
    )
    return Component(
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


def _ahead(subject: Subject, member: Member) -> MemoryForecast | None:
    """The worker's forecast, if its history is about this workload as it is now."""
    return None if member.anew and member.ladder.seen < LEAST_OWN else subject.ahead


def _model(subject: Subject, member: Member) -> str:
    """The forecaster that counts; empty where none does."""
    ahead = _ahead(subject, member)
    return (member.ladder.acting or "") if ahead is None else ahead.model


def _decided(
    members: Mapping[str, Member],
    present: Sequence[Subject],
    plan: ShapingPlan,
    acts: bool,
    now_s: float,
    notes: list[tuple[str, str]],
) -> tuple[dict[str, Member], list[tuple[str, str]]]:
    """The members after a plan, and whom it ends."""
    found = dict(members)
    sizes = {size.component: size for size in plan.sizes}
    preempted = {each.component: each for each in plan.proposed if isinstance(each, Preemption)}
    ends: list[tuple[str, str]] = []
    for subject in present:
        member = found[subject.name]
        size, preemption = sizes[subject.name], preempted.get(subject.name)
        rung = preemption.rung if preemption is not None and acts else None
        reason = preemption.reason if preemption is not None else size.reason
        if rung is not member.rung:
            member = replace(member, rung_intervals=0)
            what = "resumes" if rung is None else f"makes room: {rung.value}"
            notes.append((subject.name, f"{what} ({reason})"))
        member = replace(
            member, target_bytes=size.target, reason=reason, rung=rung, model=_model(subject, member)
        )
        if rung is Rung.END:
            ends.append((subject.name, reason))
            member = Member(
                now_s, kills=member.kills, crashes=member.crashes, rung=rung, reason=reason, anew=True
            )
        found[subject.name] = member
    return found, ends


def _limits(
    subject: Subject, member: Member, rules: ShapingRules, now_s: float
) -> tuple[Member, ShapedLimits]:
    """What one workload is to have now, and the member with its guard."""
    acts = rules.mode in (Mode.OPTIMISTIC, Mode.PESSIMISTIC)
    if not acts or not subject.shaped or subject.degraded or member.target_bytes is None:
        return member, ShapedLimits()
    if member.rung is Rung.FREEZE:
        return member, ShapedLimits(frozen=True)
    if member.rung is Rung.RECLAIM:
        fixed = subject.unreclaimable_bytes
        least = max(
            subject.least_bytes, number(subject.used_bytes) if isinstance(fixed, Unavailable) else fixed
        )
        return member, ShapedLimits(high_bytes=int(least * (1 + HIGH_MARGIN)))
    if member.target_bytes >= subject.reserved_bytes:
        return member, ShapedLimits()
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


def number(reading: Reading) -> float:
    """The reading; 0 where there is none."""
    return 0.0 if isinstance(reading, Unavailable) else reading
