"""Runs the resource shaper: gathers its input, turns its output into settings, and ends workloads that it selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.agent.memory_forecasts import WINDOW_S, MemoryForecasts
from perphd.config.tables import SizingConfig
from perphd.domain.allocation import KEEP, Limit, Settings
from perphd.domain.decision import TROUBLED
from perphd.domain.policy import Snapshot, TargetState, WorkloadView
from perphd.domain.quick import maker
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, value_or
from perphd.domain.sample import Quality
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.fs import Identity
from perphd.isolation.ending import Ender
from perphd.monitor.memory_facts import Facts, MemoryFacts
from perphd.sizing.shaper import Resource, Role, ShaperMode, ShaperSettings
from perphd.sizing.shaper_view import ShaperView
from perphd.sizing.shaping import advance, is_notable, schedule
from perphd.sizing.shaping_state import ShapedLimits, ShapedSubject, ShapingRules, ShapingState, ShapingStep
from perphd.sizing.shaping_view import view

_ROLES: Final = {each.value: each for each in Role}
_NO_FACTS: Final = Facts()
LOOKED_AT_ONCE: Final = 10
"""Number of workloads to examine per tick: urgent ones first, then the next in order."""
LEAST_TURNS: Final = 3
"""Minimum number of workloads per tick that are examined in order, even if many are urgent."""
_make_subject = maker(ShapedSubject)


class Shaping:
    """Runs once per tick. Writes nothing itself: ``settings`` go to the executor with those of the policy.

    ``ahead``: the forecast worker's forecasts; if None, or if its interval differs from the worker's, the
    shaper uses only its own forecasts.
    """

    def __init__(
        self, config: SizingConfig, facts: MemoryFacts, ender: Ender, ahead: MemoryForecasts | None = None
    ) -> None:
        self._rules, self._own_capacity = rules_of(config), float(config.memory_bytes)
        self._facts, self._ender = facts, ender
        self._ahead = ahead if config.interval_s == WINDOW_S else None
        self._state = ShapingState()
        self._subjects: dict[str, ShapedSubject] = {}
        self._specs: list[WorkloadSpec] = []
        self._excluded: frozenset[str] = frozenset()
        self._next = 0
        self._published = False
        self._peaks: dict[str, float] = {}
        self._ending: dict[str, tuple[str, Identity | None]] = {}
        self._capacity: Reading = NOT_MEASURED
        self._limits: Mapping[str, ShapedLimits] = {}
        self._merged: dict[str, tuple[ShapedLimits, Settings, frozenset[str], Settings]] = {}

    @property
    def is_off(self) -> bool:
        """True if the shaper is off."""
        return self._rules.mode is ShaperMode.OFF

    def look(
        self, snapshot: Snapshot, target: TargetState, excluded: frozenset[str] = frozenset()
    ) -> ShapingStep:
        """Run one pass and return its output. ``excluded``: workloads that something else sizes."""
        if self.is_off:
            return ShapingStep({})
        due = self._is_due(snapshot.at_s)
        troubled = {each.workload for each in target.decisions if each.verdict.health in TROUBLED}
        views = [each for each in snapshot.workloads if each.spec.reserved_memory_bytes > 0]
        looked = self._whose_turn(views, troubled, excluded, snapshot.at_s, due)
        used = {each.spec.cgroup: each.sample.memory_working_set_bytes for each in looked if each.sample}
        killed = set(self._facts.look(used, snapshot.at_s)) - used.keys()
        looked += [each for each in views if each.spec.cgroup in killed] if killed else []
        for each in looked:
            self._subjects[each.spec.name] = self._subject(each, troubled, each.spec.name in excluded)
        names = [each.spec.name for each in looked]
        for name in names:
            self._peaks.pop(name, None)
        self._capacity = self._room(snapshot.at_s)
        self._state, step = advance(
            self._state,
            tuple(self._subjects.values()),
            self._capacity,
            self._rules,
            snapshot.at_s,
            due,
            names,
        )
        self._limits = step.limits
        groups = {spec.name: spec.cgroup for spec in self._specs} if step.ends else {}
        self._ending = {name: (groups[name], self._ender.identity(groups[name])) for name, _ in step.ends}
        return step

    def end(self, may_end: Callable[[str], str]) -> list[tuple[str, str]]:
        """End the workloads selected by the last pass; returns those that were not ended, with the reason.

        ``may_end``: returns the reason why a workload must not be ended now, or an empty text. Limits were
        written since the pass, and an operator may have intervened.
        """
        failed = []
        ending, self._ending = self._ending, {}
        for name, (cgroup, identity) in ending.items():
            if reason := may_end(name) or self._ender.end(name, cgroup, identity):
                failed.append((name, f"not ended: {reason}"))
        return failed

    def over(self, name: str, settings: Settings, knobs: frozenset[str]) -> Settings:
        """The settings of this workload combined with the shaper's; ``knobs``: those that can be set here."""
        limits = self._limits.get(name)
        if limits is None:
            return settings
        known = self._merged.get(name)
        if known is None or known[:3] != (limits, settings, knobs):
            known = self._merged[name] = limits, settings, knobs, merged(settings, limits, knobs)
        return known[3]

    def view(self) -> ShaperView:
        """The present state of the shaper, for display."""
        return view(self._state, tuple(self._subjects.values()), self._capacity, self._rules)

    def _whose_turn(
        self,
        views: Sequence[WorkloadView],
        troubled: set[str],
        excluded: frozenset[str],
        now_s: float,
        due: bool | None,
    ) -> list[WorkloadView]:
        """The workloads to examine in this tick, including new and changed ones."""
        fresh = self._changed([each.spec for each in views], excluded)
        members, peaks = self._state.members, self._peaks
        learning = schedule(self._state, members, self._rules, now_s, due)[1]
        found = {}
        for place, each in enumerate(views):
            name, sample = each.spec.name, each.sample
            if sample is not None:
                used = sample.memory_working_set_bytes
                if not isinstance(used, Unavailable) and used > peaks.get(name, 0.0):
                    peaks[name] = used
            urgent = name in fresh or name in learning or name in troubled
            if urgent or (sample is not None and is_notable(members[name], sample)):
                found[place] = each
        turns = min(len(views), max(LEAST_TURNS, LOOKED_AT_ONCE - len(found)))
        for place in range(self._next, self._next + turns):
            found[place % len(views)] = views[place % len(views)]
        self._next = (self._next + turns) % max(1, len(views))
        return list(found.values())

    def _is_due(self, now_s: float) -> bool | None:
        """True if an interval ends now, False if not; None: the shaper has only its own forecasts.

        An interval ends one tick after the tick that read new forecasts, to spread the cost.
        """
        if self._ahead is None:
            return None
        published, before = self._ahead.look(now_s), self._published
        self._published = published is True
        return published if published is None else before

    def _changed(self, specs: list[WorkloadSpec], excluded: frozenset[str]) -> set[str]:
        """Names of workloads that are new, have changed, or were excluded or included since the last tick."""
        changed = set(excluded ^ self._excluded)
        if specs != self._specs:
            before = {spec.name: spec for spec in self._specs}
            changed |= {spec.name for spec in specs if before.get(spec.name) != spec}
            for group in {spec.cgroup for spec in self._specs} - {spec.cgroup for spec in specs}:
                self._facts.forget(group)
            for name in before.keys() - {spec.name for spec in specs}:
                for kept in (self._subjects, self._merged, self._peaks):
                    kept.pop(name, None)
        self._specs, self._excluded = specs, excluded
        return changed

    def _room(self, now_s: float) -> Reading:
        if self._own_capacity:
            return self._own_capacity
        return self._facts.capacity(
            lambda: {
                spec.cgroup: value_or(self._subjects[spec.name].used_bytes, 0.0) for spec in self._specs
            },
            now_s,
        )

    def _subject(self, seen: WorkloadView, troubled: set[str], excluded: bool) -> ShapedSubject:
        spec, sample = seen.spec, seen.sample
        used: Reading = 0.0 if sample is None else sample.memory_working_set_bytes
        facts = _NO_FACTS if sample is None else self._facts.of(spec.cgroup)
        full = NOT_MEASURED if sample is None else sample.memory_full_pct
        restarted = sample is not None and sample.has(Quality.RESTARTED)
        return _make_subject(
            spec.name,
            spec.application or spec.name,
            spec.kind is Kind.LRA,
            _ROLES.get(spec.shape, Role.CORE),
            float(spec.reserved_memory_bytes),
            used,
            float(spec.min_memory_bytes),
            shaped=spec.shape != "no" and seen.enforced and not excluded,
            degraded=spec.name in troubled,
            unreclaimable_bytes=facts.unreclaimable_bytes,
            kills=facts.kills,
            full_ratio=full if isinstance(full, Unavailable) else full / 100.0,
            refaults_per_s=NOT_MEASURED if sample is None else sample.refaults_per_s,
            restarted=restarted,
            ahead=None if self._ahead is None else self._ahead.of(spec.name),
            peak_bytes=0.0 if restarted else self._peaks.get(spec.name, 0.0),
        )


def rules_of(config: SizingConfig) -> ShapingRules:
    """The operator's settings in the shaper's types."""
    k2 = {Resource.MEMORY: config.k2, Resource.CPU: min(config.k2, 1.0)}
    settings = ShaperSettings(config.k1_pct / 100.0, k2)
    return ShapingRules(ShaperMode(config.shaper), config.interval_s, settings, config.hard_limit)


def merged(settings: Settings, limits: ShapedLimits, knobs: frozenset[str]) -> Settings:
    """Both settings combined: the greater protection, the lower ceiling, and frozen if either is frozen.

    Unsupported knobs are left out.
    """
    if limits.low_bytes is not None and "memory_low_bytes" in knobs:
        low = settings.memory_low_bytes
        settings = replace(
            settings, memory_low_bytes=limits.low_bytes if low is KEEP else max(low, limits.low_bytes)
        )
    if limits.high_bytes is not None and "memory_high_bytes" in knobs:
        settings = replace(settings, memory_high_bytes=lower(settings.memory_high_bytes, limits.high_bytes))
    if limits.max_bytes is not None and "memory_max_bytes" in knobs:
        settings = replace(settings, memory_max_bytes=lower(settings.memory_max_bytes, limits.max_bytes))
    if limits.frozen and "frozen" in knobs:
        settings = replace(settings, frozen=True)
    return settings


def lower(ceiling: object, other: int) -> Limit:
    """The lower of two ceilings, of which the first may be KEEP or no limit."""
    return min(ceiling, other) if isinstance(ceiling, int) else other
