"""The CPU floor of batch: guaranteed CPU time, and a bound on starvation, however full the host is.

Problem. A cpuset of one core, or a weight, guarantees no CPU time: beside undeclared work, batch in the idle
class got no CPU time for minutes. ``min_cores`` is CPU time per second, guaranteed on average over ten seconds.
``max_starvation_s`` bounds the time without any CPU time.

Approach. While a job that wants more gets less than its floor, its weight is raised. The weight is inferred: with
weight w it got u of the c CPUs that it may use, so the others there weigh w (c - u) / u together, and it gets the share
f with the weight
    w' = w (c - u) / u * f / (c - f)

A job that got nothing starts at the weight that suffices beside one group of default weight. Raising is fast and
evaluated after ``SETTLE_S``; lowering is slow. If even the greatest weight does not suffice and the job is confined, it
may use all CPUs. The operator's own weight does not limit the raise, because the floor was declared for this
case.

Allocations record weights without this adjustment, so a demotion is only as strong as floors allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perphd.admission.context import batches
from perphd.domain.allocation import DEFAULT_WEIGHT, IDLE, KEEP, Settings
from perphd.domain.decision import Outcome
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.progress import NO_PROGRESS, OVER_S, Progress, advance
from perphd.domain.quick import replace
from perphd.domain.reading import Unavailable, available, value_or
from perphd.domain.workload import WorkloadSpec

AIM: Final = 1.2
"""CPU time aimed at, as a multiple of the floor. It exceeds 1, because samples scatter around the ten-second mean."""
CATCH_UP: Final = 2.0
"""Seconds in which a deficit of the last ten seconds is compensated."""
ENOUGH: Final = 1.05
"""Multiple of the floor from which the weight is not raised."""
PLENTY: Final = 1.6
"""Multiple of the floor from which, after ``OVER_S``, the weight is lowered."""
LEAST_PROGRESS_CORES: Final = 0.02
"""CPU use in cores that counts as progress if only ``max_starvation_s`` is given."""
ACTS_AT: Final = 1.0 / 3.0
"""Share of ``max_starvation_s`` after which a raise begins. The rest leaves time for three raises."""
SETTLE_S: Final = 2.0
"""Minimum time between two changes of a job's weight, in seconds."""
STEP: Final = 1.2
"""Factor by which a new weight must differ from the present one to be set."""
MOST_STEP: Final = 8.0
BLIND_STEP: Final = 32.0
"""Factor on the weight of a job that still gets no CPU time, because the weights of the others are unknown."""
IDLE_WEIGHT: Final = 0.3
"""Weight equivalent to the idle class."""
LEAST_WEIGHT, MOST_WEIGHT = 1.0, 10000.0
NOTHING: Final = 0.01
"""Share of the CPUs below which a job's use does not show the weights of the others."""
FULL: Final = 0.9
"""Share of the host's CPUs in use above which the idle class gets nothing."""
MOST_SHARE: Final = 0.95
"""Largest share of the CPUs that a weight can give beside others."""


@dataclass(frozen=True, slots=True)
class Lift:
    """The raise of one job's CPU share. ``weight``: its minimum weight. ``wide``: True if the job may use all CPUs.

    ``began_s``: start of the raise; ``changed_s``: last change of weight; ``plenty_since_s``: time since
    which the job gets far more than its floor, or wants less (None: neither).
    """

    weight: float
    began_s: float
    changed_s: float
    wide: bool = False
    plenty_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """State of one job with a floor: its progress, and its raise if any."""

    progress: Progress = NO_PROGRESS
    lift: Lift | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """State of all jobs with a floor, by name."""

    kept: Mapping[str, Kept]


@dataclass(frozen=True, slots=True)
class _Place:
    """CPUs available to a job. ``room``: number it may use now; ``full``: no CPU of the host is idle."""

    now_s: float
    room: float
    full: bool


NO_FLOOR: Final = Floor({})


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one tick."""

    floor: Floor
    settings: Mapping[str, Settings]
    outcomes: tuple[Outcome, ...] = ()


def hold(before: Floor, snapshot: Snapshot, settings: Mapping[str, Settings]) -> Step:
    """Raise the weights of jobs that get less than their floor, and lower raises no longer needed."""
    kept: dict[str, Kept] = {}
    found = dict(settings)
    outcomes: list[Outcome] = []
    for view in batches(snapshot):
        spec = view.spec
        if spec.guaranteed_cores <= 0.0 and spec.max_starvation_s is None:
            continue
        known = before.kept.get(spec.name, Kept())
        progress = advance(known.progress, view.sample)
        can = view.enforced and view.sample is not None and "cpu_weight" in view.enforceable
        wanted = found.get(spec.name, Settings())
        lift = _lift(known.lift, progress, view, snapshot, wanted) if can else None
        kept[spec.name] = Kept(progress, lift)
        if lift is not None:
            found[spec.name] = lifted(wanted, lift)
        if (lift is None) != (known.lift is None) and can:
            outcomes.append(_told(view, snapshot.at_s, known.lift, lift, progress))
    return Step(Floor(kept), found, tuple(outcomes))


def lifted(wanted: Settings, lift: Lift) -> Settings:
    """``wanted`` with at least the raised weight, and without a cpuset if the raise is ``wide``."""
    weight = round(lift.weight)
    if weight > _weight(wanted):
        wanted = replace(wanted, cpu_weight=weight)
    return replace(wanted, cpus=KEEP) if lift.wide else wanted


def _lift(
    lift: Lift | None, progress: Progress, view: WorkloadView, snapshot: Snapshot, wanted: Settings
) -> Lift | None:
    """The raise of a job after this tick; None if it needs none."""
    now_s, spec = snapshot.at_s, view.spec
    if spec.guaranteed_cores <= 0.0 and lift is None and not _is_overdue(progress, spec, snapshot):
        return None
    at = _place(view, snapshot, wanted, lift)
    floor = min(spec.guaranteed_cores or LEAST_PROGRESS_CORES, MOST_SHARE * at.room)
    since_s = now_s - lift.changed_s if lift is not None else OVER_S
    got = progress.cores(now_s, max(SETTLE_S, min(since_s, OVER_S)))
    if isinstance(got, Unavailable):
        return lift
    weight = max(_weight(wanted), lift.weight if lift is not None else 0.0)
    if progress.waits and min(got, value_or(progress.cores(now_s, SETTLE_S), got)) < ENOUGH * floor:
        if since_s < SETTLE_S:
            return lift
        missed = CATCH_UP * max(0.0, floor - value_or(progress.cores(now_s), floor))
        return _raised(lift, weight, inferred(weight, got, AIM * floor + missed, at.room), now_s)
    return None if lift is None else _eased(lift, progress, wanted, floor, at)


def _is_overdue(progress: Progress, spec: WorkloadSpec, snapshot: Snapshot) -> bool:
    """True if the weight of a job without progress must be raised now to keep ``max_starvation_s``."""
    if progress.starved_since_s is None or spec.max_starvation_s is None:
        return False
    return progress.starved_s(snapshot.at_s) + snapshot.period_s + SETTLE_S >= ACTS_AT * spec.max_starvation_s


def inferred(weight: float, got: float, floor: float, room: float) -> float:
    """The weight that gives a job ``floor`` of ``room`` CPUs, given that it got ``got`` with ``weight``."""
    floor = min(floor, MOST_SHARE * room)
    share = floor / (room - floor)
    if got <= NOTHING * room:
        return max(DEFAULT_WEIGHT * share, BLIND_STEP * weight if weight >= LEAST_WEIGHT else 0.0)
    others = weight * max(room - got, NOTHING * room) / got
    return others * share


def _raised(lift: Lift | None, weight: float, asked: float, now_s: float) -> Lift:
    raised = min(MOST_WEIGHT, max(LEAST_WEIGHT, STEP * weight, asked))
    began_s = lift.began_s if lift is not None else now_s
    wide = weight >= MOST_WEIGHT or (lift is not None and lift.wide)
    return Lift(raised, began_s, now_s, wide)


def _eased(lift: Lift, progress: Progress, wanted: Settings, floor: float, at: _Place) -> Lift | None:
    """The raise of a job that gets its floor, or wants no more than it gets."""
    got = progress.cores(at.now_s)
    if at.full and (not progress.waits or isinstance(got, Unavailable) or got < PLENTY * floor):
        # An unused weight takes nothing from others, but in the idle class the job would starve again.
        return replace(lift, plenty_since_s=None)
    if lift.plenty_since_s is None:
        return replace(lift, plenty_since_s=at.now_s)
    if at.now_s - lift.plenty_since_s < OVER_S:
        return lift
    if not at.full:
        return None
    lower = inferred(lift.weight, value_or(got, floor), AIM * floor, at.room)
    if lower <= _weight(wanted) and wanted.cpu_weight is not IDLE:
        return None
    lower = max(
        LEAST_WEIGHT, float(math.ceil(lower)), lift.weight / MOST_STEP
    )  # the kernel's weights are whole
    return lift if lower * STEP > lift.weight else Lift(lower, lift.began_s, at.now_s, lift.wide)


def _weight(wanted: Settings) -> float:
    if wanted.cpu_weight is KEEP:
        return float(DEFAULT_WEIGHT)
    return IDLE_WEIGHT if wanted.cpu_weight is IDLE else float(wanted.cpu_weight)


def _place(view: WorkloadView, snapshot: Snapshot, wanted: Settings, lift: Lift | None) -> _Place:
    """The CPUs on which the job may run. A host of unknown use counts as full."""
    usable = snapshot.host.topology.usable
    busy = value_or(snapshot.host.busy_cores, float(len(usable)))
    allowed = usable if view.allowed is None else usable & view.allowed
    if wanted.cpus is not KEEP and (lift is None or not lift.wide):
        allowed = allowed & wanted.cpus
    return _Place(snapshot.at_s, float(max(1, len(allowed))), busy >= FULL * len(usable))


def _told(
    view: WorkloadView, at_s: float, before: Lift | None, lift: Lift | None, progress: Progress
) -> Outcome:
    spec, got = view.spec, progress.cores(at_s)
    floor = f"min_cores = {spec.guaranteed_cores:g}" if spec.guaranteed_cores else "max_starvation_s"
    seen = f"{got:.2f} cores over {OVER_S:g} s" if available(got) else "nothing"
    if lift is not None:
        text = f"{floor}: it got {seen}; its weight is raised to {round(lift.weight)} and adjusted further"
    else:
        text = f"{floor}: it got {seen} without help; its weight is restored"
    none = Unavailable("batch has no target")
    began_s = before.began_s if before is not None else at_s
    return Outcome(at_s, spec.name, began_s, none, none, lift is not None, text)
