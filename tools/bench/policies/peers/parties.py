"""PARTIES (Chen, Delimitrou, Martinez, ASPLOS 2019): one unit of one resource of one application at a time.

Every application starts with an equal part of every resource. Twice a second: if the worst slack is below 5 %, that
application gets a unit; else, if the best slack is above 20 %, that application gives one away. The resource is found
by trial: an application cycles through its wheel (cores, cache ways, bandwidth) and moves on when a step did not have
the intended effect. A step up that does not help is kept; a step down that leads to a violation is rolled back at once,
and that application gives up nothing for 30 s. Units come from batch first, else from the LRA with the most slack.

``literal`` follows the printed rule, by which always the application with the most slack gives up a unit: if it has
only one unit of each resource, the search ends. The corrected variant skips such an application.

``until_met`` is PARTIES as CLITE's authors describe it in their comparison (HPCA 2020, introduction): it adjusts until
the targets of all LRAs are met, and the remaining units then go to batch. It adds units only while a target is missed,
not while slack is below 5 %. (OLPart's re-implementation, too, ends as soon as all targets are met.)

Three parts are omitted: frequency (bandwidth takes its place on the wheel, as in CLITE's comparison), the storage wheel
(services held in memory are never shrunk there either), and migration, which a single host cannot do. After 60 s
without a configuration that meets all targets, a migration is counted and the search continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from perphd.admission.context import batches, lras
from perphd.domain.policy import Snapshot, TargetState
from tools.bench.policies.peers.units import RESOURCES, Units, capacity, equal_parts, settings_of, slack

UPSIZE_BELOW: Final = 0.05
DOWNSIZE_ABOVE: Final = 0.20
PERIOD_S: Final = 0.5
BAN_S: Final = 30.0
MIGRATE_AFTER_S: Final = 60.0
BATCH: Final = "\N{BULLET} batch"
"""All batch forms one pool that has the remaining units."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The step on trial: ``up`` or down by one unit of ``resource``, for which application, and its counterpart."""

    up: bool
    app: str
    other: str
    resource: str
    slack_before: float


@dataclass(frozen=True, slots=True)
class PartiesMemory:
    """``wheel``: position of each application on its wheel; ``banned_until_s``: time until which an application may not
    be shrunk.
    """

    parts: Mapping[str, Units] = field(default_factory=dict)
    wheel: Mapping[str, int] = field(default_factory=dict)
    banned_until_s: Mapping[str, float] = field(default_factory=dict)
    trial: Trial | None = None
    met_s: float = 0.0
    migrations: int = 0


class PartiesPolicy:
    """The policy of the module. ``seed``: of the wheels' starting positions, which are random in the paper."""

    def __init__(self, seed: int = 0, *, literal: bool = False, until_met: bool = False) -> None:
        self._seed, self._literal = seed, literal
        self._upsize_below = 0.0 if until_met else UPSIZE_BELOW

    @property
    def name(self) -> str:
        """``parties-literal``, ``parties-until-met`` or ``parties``."""
        if self._literal:
            return "parties-literal"
        return "parties" if self._upsize_below > 0 else "parties-until-met"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """One step at most."""
        apps = tuple(v.spec.name for v in lras(snapshot) if v.sample is not None)
        pool = tuple(v.spec.name for v in batches(snapshot) if v.sample is not None)
        if not apps:
            return TargetState({}, memory=PartiesMemory(met_s=snapshot.at_s))
        owners = (*apps, BATCH) if pool else apps
        memory = snapshot.memory if isinstance(snapshot.memory, PartiesMemory) else PartiesMemory()
        if tuple(memory.parts) != owners:
            memory = self._start(snapshot, owners)
        else:
            memory = self._step(snapshot, _with_what_there_is(memory, capacity(snapshot)))
        named = [(pool if owner == BATCH else (owner,), units) for owner, units in memory.parts.items()]
        return TargetState(settings_of(snapshot.host, named), memory=memory)

    def _start(self, snapshot: Snapshot, owners: tuple[str, ...]) -> PartiesMemory:
        parts = dict(zip(owners, equal_parts(capacity(snapshot), len(owners)), strict=True))
        resources = len(_wheel(capacity(snapshot)))
        wheel = {owner: Random(f"{self._seed}:{owner}").randrange(resources) for owner in owners}
        return PartiesMemory(parts, wheel, met_s=snapshot.at_s)

    def _step(self, snapshot: Snapshot, memory: PartiesMemory) -> PartiesMemory:
        slacks = {v.spec.name: s for v in lras(snapshot) if (s := slack(v)) is not None}
        if not slacks:
            return memory
        now_s = snapshot.at_s
        wheel = _wheel(capacity(snapshot))
        memory = _watch_timer(memory, slacks, now_s)
        if memory.trial is not None:
            undone = _judge(memory, memory.trial, slacks, now_s, len(wheel))
            if undone.parts != memory.parts:
                return undone
            memory = undone
        worst = min(slacks, key=lambda app: slacks[app])
        if slacks[worst] < self._upsize_below:
            return _upsize(memory, worst, slacks, wheel)
        free = {
            a: s
            for a, s in slacks.items()
            if memory.banned_until_s.get(a, 0.0) <= now_s
            and (self._literal or _can_give(memory.parts[a], wheel))
        }
        if free:
            best = max(free, key=lambda app: free[app])
            if free[best] > DOWNSIZE_ABOVE:
                return _downsize(memory, best, slacks, wheel)
        return memory


def _with_what_there_is(memory: PartiesMemory, total: Units) -> PartiesMemory:
    """A resource whose amount has changed is divided equally again.

    This covers ways and bandwidth when resctrl is mounted after the start. Other resources stay unchanged.
    """
    parts = dict(memory.parts)
    fresh = dict(zip(parts, equal_parts(total, len(parts)), strict=True))
    changed = [r for r in RESOURCES if sum(units.get(r) for units in parts.values()) != total.get(r)]
    if not changed:
        return memory
    for owner, units in parts.items():
        parts[owner] = replace(units, **{resource: fresh[owner].get(resource) for resource in changed})
    return replace(memory, parts=parts, trial=None)


def _can_give(units: Units, wheel: tuple[str, ...]) -> bool:
    """True while it has more than one unit of some resource; resources at their minimum are skipped."""
    return any(units.get(resource) > 1 for resource in wheel)


def _wheel(total: Units) -> tuple[str, ...]:
    return tuple(r for r in RESOURCES if total.get(r))


def _watch_timer(memory: PartiesMemory, slacks: Mapping[str, float], now_s: float) -> PartiesMemory:
    if min(slacks.values()) >= 0.0:
        return replace(memory, met_s=now_s)
    if now_s - memory.met_s >= MIGRATE_AFTER_S:
        return replace(memory, met_s=now_s, migrations=memory.migrations + 1)
    return memory


def _judge(
    memory: PartiesMemory, trial: Trial, slacks: Mapping[str, float], now_s: float, places: int
) -> PartiesMemory:
    """Evaluate the step on trial: move to the next resource if it failed, and revert it if it did harm."""
    memory = replace(memory, trial=None)
    found = slacks.get(trial.app)
    if found is None:
        return memory
    turned = {**memory.wheel, trial.app: (memory.wheel.get(trial.app, 0) + 1) % places}
    if trial.up:
        return memory if found > trial.slack_before else replace(memory, wheel=turned)
    if found >= 0.0:
        return memory
    parts = _moved(memory.parts, trial.resource, giver=trial.other, taker=trial.app)
    banned = {**memory.banned_until_s, trial.app: now_s + BAN_S}
    return replace(memory, parts=parts, wheel=turned, banned_until_s=banned)


def _upsize(
    memory: PartiesMemory, app: str, slacks: Mapping[str, float], wheel: tuple[str, ...]
) -> PartiesMemory:
    place = memory.wheel.get(app, 0)
    for turn in range(len(wheel)):
        resource = wheel[(place + turn) % len(wheel)]
        victim = _victim(memory.parts, app, resource, slacks)
        if victim is not None:
            parts = _moved(memory.parts, resource, giver=victim, taker=app)
            return replace(
                memory,
                parts=parts,
                wheel={**memory.wheel, app: (place + turn) % len(wheel)},
                trial=Trial(True, app, victim, resource, slacks[app]),
            )
    return memory


def _downsize(
    memory: PartiesMemory, app: str, slacks: Mapping[str, float], wheel: tuple[str, ...]
) -> PartiesMemory:
    if BATCH not in memory.parts:
        return memory  # no application would gain
    place = memory.wheel.get(app, 0)
    for turn in range(len(wheel)):
        resource = wheel[(place + turn) % len(wheel)]
        if memory.parts[app].get(resource) > 1:
            parts = _moved(memory.parts, resource, giver=app, taker=BATCH)
            return replace(
                memory,
                parts=parts,
                wheel={**memory.wheel, app: (place + turn) % len(wheel)},
                trial=Trial(False, app, BATCH, resource, slacks[app]),
            )
    return memory


def _victim(parts: Mapping[str, Units], app: str, resource: str, slacks: Mapping[str, float]) -> str | None:
    """Batch while it has more than one unit, else the LRA with the most slack that has more than one."""
    if BATCH in parts and parts[BATCH].get(resource) > 1:
        return BATCH
    others = [a for a in parts if a not in (app, BATCH) and a in slacks and parts[a].get(resource) > 1]
    victim = max(others, key=lambda a: slacks[a], default=None)
    return victim if victim is not None and slacks[victim] > slacks[app] else None


def _moved(parts: Mapping[str, Units], resource: str, giver: str, taker: str) -> dict[str, Units]:
    return {
        owner: units.plus(resource, -1)
        if owner == giver
        else units.plus(resource, 1)
        if owner == taker
        else units
        for owner, units in parts.items()
    }
