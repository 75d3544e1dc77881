"""Resource shaper: the size of every component of a host for the next interval (Pace 2018, chapter 4).

Problem. Reservations are wrong, and forecasts are uncertain. Components that hold only their probable demand
can exceed the host together. The shaper decides which components shrink, freeze or end, before the kernel has
to.

Size. For a component with reservation R, use u now, and a forecast of mean m and spread s of the next
interval's maximum:

    cap    = max(R, u)
    target = clip(m + K1 R + K2 s,  from max(u, least) to cap)

The size is cap itself with fewer than ``GRACE_SAMPLES`` samples, no forecast, a crash in the last interval,
or ``GREATEST_CRASHES`` crashes. A component whose owner did not opt in is advised and never changed. The same
holds for a degraded component. Such components are placed first, at their target, or at their present use
without a forecast.

Plan (Algorithm 3). Applications are placed in the order of their rank. Each needs room for all its core
components, or the whole application is preempted. Its elastic components follow, oldest first; one that does
not fit is preempted alone. Two corrections of the publication: a component that exactly fills the host stays,
and each resource has its own buffer. ``guarded`` names the resources whose shortage preempts. A shortage of CPU
slows components but kills none, so the default is memory alone.

Preemption moves one rung further in every interval: reclaim, freeze, end. ``patient`` components stay on
their rung, because freezing is enough while frozen components fit. A component without reclaimable memory begins
with freezing. A frozen component still holds its unreclaimable memory, which counts: if the components
that stay and this memory exceed the capacity, components end at once, elastic before core, youngest first.
An unknown value never ends a component: if its unreclaimable memory cannot be read, it makes room only by
reclaim and freezing. Between two intervals (``early``) no component returns, and components move a rung further only
for that reason.

All results are values; this module carries out nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from perphd.domain.quick import maker
from perphd.domain.reading import Reading, Unavailable, available, value_or

GRACE_SAMPLES: Final = 10
GREATEST_CRASHES: Final = 5
HIGH_MARGIN: Final = 0.05
"""Distance of ``memory.high`` above the target, as a share."""
GUARD_FULL_RATIO: Final = 0.05
"""Share of time in which all tasks wait for memory, above which ``memory.high`` is lifted."""
STUCK_RATIO: Final = 0.9
"""Share of unreclaimable use above which a component is frozen without an attempt to reclaim."""


class Resource(Enum):
    """A sized resource: cores, or bytes of memory."""

    CPU = "cpu"
    MEMORY = "memory"


class ShaperMode(Enum):
    """Mode of applying a plan."""

    OFF = "off"
    OBSERVE = "observe"
    OPTIMISTIC = "optimistic"
    PESSIMISTIC = "pessimistic"


class Role(Enum):
    """Whether an application can run without the component."""

    CORE = "core"
    ELASTIC = "elastic"


class Rung(Enum):
    """Ways of making room, mildest first."""

    RECLAIM = "reclaim"
    FREEZE = "freeze"
    END = "end"


RUNGS: Final = tuple(Rung)


@dataclass(frozen=True, slots=True)
class Demand:
    """One resource of one component.

    ``held``: the size in force. ``mean`` and ``spread`` forecast the next interval's maximum; a calibrated
    forecast sets the spread so that  mean + 3 spread  is its bound. ``least``: smallest viable size.
    ``unreclaimable``: the part of the use that is freed only when its owner ends, such as anonymous memory
    without swap. If it is unknown, the owner is not ended.
    """

    reserved: float
    used: float
    held: float
    mean: Reading
    spread: Reading
    least: float = 0.0
    unreclaimable: Reading = 0.0


@dataclass(frozen=True, slots=True)
class Component:
    """One control group.

    ``rank`` orders applications (smaller first); ``rung``: the rung on which it is already preempted.
    """

    name: str
    application: str
    rank: int
    role: Role
    age_s: float
    demands: Mapping[Resource, Demand]
    samples: int
    shaped: bool = True
    degraded: bool = False
    crashes: int = 0
    crashed: bool = False
    rung: Rung | None = None
    patient: bool = False


@dataclass(frozen=True, slots=True)
class ShaperSettings:
    """K1: share of the reservation that is always kept. K2: number of spreads that are kept, per resource."""

    k1: float = 0.05
    k2: Mapping[Resource, float] = field(default_factory=lambda: {Resource.MEMORY: 3.0, Resource.CPU: 1.0})
    guarded: tuple[Resource, ...] = (Resource.MEMORY,)


@dataclass(frozen=True, slots=True)
class WantedSize:
    """The target of one component for one resource, with the reason."""

    component: str
    resource: Resource
    target: float
    reason: str


@dataclass(frozen=True, slots=True)
class Preemption:
    """A component that makes room, and its next rung."""

    component: str
    rung: Rung
    reason: str


@dataclass(frozen=True, slots=True)
class Resize:
    """A new size for a component."""

    component: str
    resource: Resource
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class MemoryRelease:
    """A preempted component that fits again and resumes."""

    component: str


_make_size = maker(WantedSize)
ShapingAction: TypeAlias = Preemption | Resize | MemoryRelease


@dataclass(frozen=True, slots=True)
class ShapingPlan:
    """Sizes of all components, possible actions (``proposed``) and those to carry out (``actions``), in order.

    ``reclaimable``: capacity less the sizes of all components that stay.
    """

    sizes: tuple[WantedSize, ...]
    proposed: tuple[ShapingAction, ...]
    actions: tuple[ShapingAction, ...]
    reclaimable: Mapping[Resource, float]


def shape(
    components: Sequence[Component],
    capacity: Mapping[Resource, float],
    mode: ShaperMode,
    settings: ShaperSettings | None = None,
    *,
    early: bool = False,
) -> ShapingPlan:
    """The plan for one interval, or for the rest of one (``early``).

    ``capacity``: the host's amounts for these components.
    """
    chosen = settings or ShaperSettings()
    sizes = {component.name: _sizes(component, chosen) for component in components}
    placed = {
        component.name: {
            resource: _placed(component, size, component.demands[resource])
            for resource, size in sizes[component.name].items()
        }
        for component in components
    }
    evicted = (
        _evicted(components, placed, capacity, chosen, early) if mode is not ShaperMode.OPTIMISTIC else {}
    )
    left = {
        resource: amount
        - sum(found.get(resource, 0.0) for name, found in placed.items() if name not in evicted)
        for resource, amount in capacity.items()
    }
    rungs = _rungs(components, left, chosen, evicted, early) if evicted else {}
    preemptions = [
        Preemption(component.name, rungs[component.name], evicted[component.name])
        for component in sorted(components, key=lambda each: each.role is Role.CORE)
        if component.name in evicted
    ]
    resizes = [
        Resize(component.name, size.resource, component.demands[size.resource].held, size.target)
        for component in components
        if _touchable(component) and component.name not in evicted
        for size in sizes[component.name].values()
        if size.target != component.demands[size.resource].held
    ]
    shrinks = [resize for resize in resizes if resize.after < resize.before]
    grows = [resize for resize in resizes if resize.after > resize.before]
    releases = [
        MemoryRelease(component.name)
        for component in components
        if component.rung in (Rung.RECLAIM, Rung.FREEZE) and component.name not in evicted
    ]
    wanted: tuple[ShapingAction, ...] = (*preemptions, *shrinks, *releases, *grows)
    proposed = () if mode is ShaperMode.OFF else wanted
    return ShapingPlan(
        tuple(size for each in sizes.values() for size in each.values()),
        proposed,
        proposed if mode in (ShaperMode.OPTIMISTIC, ShaperMode.PESSIMISTIC) else (),
        left,
    )


def _touchable(component: Component) -> bool:
    return component.shaped and not component.degraded


def _sizes(component: Component, settings: ShaperSettings) -> dict[Resource, WantedSize]:
    return {
        resource: _make_size(component.name, resource, *_target(component, resource, demand, settings))
        for resource, demand in component.demands.items()
    }


def _target(
    component: Component, resource: Resource, demand: Demand, settings: ShaperSettings
) -> tuple[float, str]:
    cap = max(demand.reserved, demand.used)
    if component.samples < GRACE_SAMPLES:
        return cap, f"{component.samples} of {GRACE_SAMPLES} intervals observed: keeping the reservation"
    if component.crashes >= GREATEST_CRASHES:
        return cap, f"{component.crashes} crashes: no longer shaped"
    if component.crashed:
        return cap, "crashed: the reservation is restored"
    if isinstance(demand.mean, Unavailable):
        return cap, f"no forecast: {demand.mean.reason}"
    if isinstance(demand.spread, Unavailable):
        return cap, f"no forecast: {demand.spread.reason}"
    wanted = demand.mean + settings.k1 * demand.reserved + settings.k2[resource] * demand.spread
    floor = max(demand.used, demand.least)
    if wanted < floor:
        return min(floor, cap), "present use" if demand.used >= demand.least else "smallest viable size"
    return (
        (wanted, "forecast and buffer")
        if wanted < cap
        else (cap, "forecast and buffer reach the reservation")
    )


def _placed(component: Component, size: WantedSize, demand: Demand) -> float:
    """A component's share of the host in the plan."""
    known = not isinstance(demand.mean, Unavailable) and component.samples >= GRACE_SAMPLES
    return size.target if _touchable(component) or known else demand.used


def _evicted(
    components: Sequence[Component],
    placed: Mapping[str, Mapping[Resource, float]],
    capacity: Mapping[Resource, float],
    settings: ShaperSettings,
    early: bool,
) -> dict[str, str]:
    """Names of the components that make room, with the reason (Algorithm 3)."""
    free = {resource: capacity[resource] for resource in settings.guarded if resource in capacity}

    def without(left: Mapping[Resource, float], component: Component) -> dict[Resource, float]:
        return {
            resource: amount - placed[component.name].get(resource, 0.0) for resource, amount in left.items()
        }

    for component in components:
        if not _touchable(component):
            free = without(free, component)
    ranked: dict[tuple[int, str], list[Component]] = {}
    found: dict[str, str] = {}
    for component in components:
        if early and component.rung is not None and _touchable(component):
            found[component.name] = "already makes room: it returns at the end of an interval at the earliest"
        elif _touchable(component):
            ranked.setdefault((component.rank, component.application), []).append(component)
    for (_, application), members in sorted(ranked.items(), key=lambda item: item[0]):
        left = free
        for core in (member for member in members if member.role is Role.CORE):
            left = without(left, core)
        short = [resource.value for resource, amount in left.items() if amount < 0]
        if short:
            found |= {member.name: f"{application}: no {', '.join(short)} for its core" for member in members}
            continue
        free = left
        elastic = (member for member in members if member.role is Role.ELASTIC)
        for member in sorted(elastic, key=lambda each: (-each.age_s, each.name)):
            left = without(free, member)
            short = [resource.value for resource, amount in left.items() if amount < 0]
            if short:
                found[member.name] = f"no {', '.join(short)} for an elastic component"
            else:
                free = left
    return found


def _rungs(
    components: Sequence[Component],
    left: Mapping[Resource, float],
    settings: ShaperSettings,
    evicted: Mapping[str, str],
    early: bool,
) -> dict[str, Rung]:
    """The next rung of each component that makes room."""
    leaving = [component for component in components if component.name in evicted]
    rungs = {component.name: _next_rung(component, early) for component in leaving}
    ending = sorted(leaving, key=lambda each: (each.role is Role.CORE, -each.rank, each.age_s))
    for resource in settings.guarded:
        room = left.get(resource, float("inf"))
        for component in ending:
            if not _is_known(component):
                continue
            if room >= sum(_remains(each, resource) for each in leaving if rungs[each.name] is not Rung.END):
                break
            alike = [each for each in leaving if each.application == component.application]
            for each in alike if component.role is Role.CORE else (component,):
                if _is_known(each):
                    rungs[each.name] = Rung.END
    return rungs


def _is_known(component: Component) -> bool:
    """Whether the memory that a frozen component would still hold is known."""
    return all(available(demand.unreclaimable) for demand in component.demands.values())


def _remains(component: Component, resource: Resource) -> float:
    """The amount that a component still holds while frozen, after reclaim; 0 if unknown."""
    return value_or(component.demands[resource].unreclaimable, 0.0) if resource in component.demands else 0.0


def _next_rung(component: Component, early: bool) -> Rung:
    if component.rung is not None:
        last = len(RUNGS) - 1 if _is_known(component) else RUNGS.index(Rung.FREEZE)
        return (
            component.rung
            if early or component.patient
            else RUNGS[min(RUNGS.index(component.rung) + 1, last)]
        )
    demands = component.demands.values()
    stuck = any(demand.used > 0 for demand in demands) and all(
        value_or(demand.unreclaimable, 0.0) >= STUCK_RATIO * demand.used for demand in demands
    )
    return Rung.FREEZE if stuck else Rung.RECLAIM


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Soft limits on cgroup v2; ``high_bytes`` None: no limit."""

    low_bytes: int
    high_bytes: int | None


def memory_limits(target_bytes: float, full_ratio: Reading, refaults_rise: bool) -> MemoryLimits:
    """``memory.low`` at the target; ``memory.high`` above it, lifted while the workload waits for memory.

    ``full_ratio``: share of the last window in which all tasks waited for memory. Without that reading there
    is no ``memory.high``: a workload of anonymous memory without swap would stall at it undetected.
    """
    stalled = isinstance(full_ratio, Unavailable) or full_ratio > GUARD_FULL_RATIO or refaults_rise
    return MemoryLimits(int(target_bytes), None if stalled else int(target_bytes * (1 + HIGH_MARGIN)))
