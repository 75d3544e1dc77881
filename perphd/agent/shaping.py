"""The shell of the resource shaper: gathers what it decides from, and turns its answers into settings and endings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.agent.config_sizing import SizingConfig
from perphd.agent.memory_forecasts import WINDOW_S, MemoryForecasts
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
from perphd.sizing.shaper import Mode, Resource, Role, ShaperSettings
from perphd.sizing.shaper_view import ShaperView
from perphd.sizing.shaping import advance, is_notable
from perphd.sizing.shaping_state import ShapedLimits, ShapingRules, ShapingState, ShapingStep, Subject
from perphd.sizing.shaping_view import view

_ROLES: Final = {each.value: each for each in Role}
_NO_FACTS: Final = Facts()
LOOKED_AT_ONCE: Final = 20
"""Workloads that a round looks at; of more, each has its turn in every N / 20 rounds, and notable ones at once."""
_make_subject = maker(Subject)


class Shaping:
    """Looks once a round. Writes nothing itself: ``settings`` go to the executor with those of the policy.

    ``ahead``: the forecast worker's forecasts; None, or intervals that are not the worker's: the shaper's own alone.
    """

    def __init__(
        self, config: SizingConfig, facts: MemoryFacts, ender: Ender, ahead: MemoryForecasts | None = None
    ) -> None:
        self._rules, self._own_capacity = rules_of(config), float(config.memory_bytes)
        self._facts, self._ender = facts, ender
        self._ahead = ahead if config.interval_s == WINDOW_S else None
        self._state = ShapingState()
        self._subjects: dict[str, Subject] = {}
        self._specs: list[WorkloadSpec] = []
        self._excluded: frozenset[str] = frozenset()
        self._round = 0
        self._ending: dict[str, tuple[str, Identity | None]] = {}
        self._capacity: Reading = NOT_MEASURED
        self._limits: Mapping[str, ShapedLimits] = {}

    @property
    def is_off(self) -> bool:
        """True if nothing is looked at."""
        return self._rules.mode is Mode.OFF

    def look(
        self, snapshot: Snapshot, target: TargetState, excluded: frozenset[str] = frozenset()
    ) -> ShapingStep:
        """One look: what follows from it. ``excluded``: workloads that somebody else is sizing now."""
        if self.is_off:
            return ShapingStep({})
        due = None if self._ahead is None else self._ahead.look(snapshot.at_s)
        troubled = {each.workload for each in target.decisions if each.verdict.health in TROUBLED}
        views = [each for each in snapshot.workloads if each.spec.reserved_memory_bytes > 0]
        looked = self._whose_turn(views, troubled, excluded)
        used = {each.spec.cgroup: each.sample.memory_working_set_bytes for each in looked if each.sample}
        killed = set(self._facts.look(used, snapshot.at_s)) - used.keys()
        looked += [each for each in views if each.spec.cgroup in killed] if killed else []
        for each in looked:
            self._subjects[each.spec.name] = self._subject(each, troubled, each.spec.name in excluded)
        names = {each.spec.name for each in looked}
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
        ends = {name for name, _ in step.ends}
        self._ending = {
            spec.name: (spec.cgroup, self._ender.identity(spec.cgroup))
            for spec in self._specs
            if spec.name in ends
        }
        return step

    def end(self, may_end: Callable[[str], str]) -> list[tuple[str, str]]:
        """End the workloads that the last look ends; returns those that were not ended, with the reason.

        ``may_end``: why a workload must not be ended now, or empty: limits were written since the look, and people may
        have spoken meanwhile.
        """
        failed = []
        ending, self._ending = self._ending, {}
        for name, (cgroup, identity) in ending.items():
            if reason := may_end(name) or self._ender.end(name, cgroup, identity):
                failed.append((name, f"not ended: {reason}"))
        return failed

    def over(self, name: str, settings: Settings, knobs: frozenset[str]) -> Settings:
        """The settings of this workload with what the shaper wants; ``knobs``: what can be set here."""
        limits = self._limits.get(name)
        return settings if limits is None else merged(settings, limits, knobs)

    def view(self) -> ShaperView:
        """The shaper as people see it."""
        return view(self._state, tuple(self._subjects.values()), self._capacity, self._rules)

    def _whose_turn(
        self, views: Sequence[WorkloadView], troubled: set[str], excluded: frozenset[str]
    ) -> list[WorkloadView]:
        """The workloads to look at in this round: all of them if some came, went or changed."""
        self._round += 1
        specs = [each.spec for each in views]
        if specs != self._specs or excluded != self._excluded:
            for gone in {spec.cgroup for spec in self._specs} - {spec.cgroup for spec in specs}:
                self._facts.forget(gone)
            self._specs, self._excluded, self._subjects = specs, excluded, {}
            return list(views)
        turns = max(1, -(-len(views) // LOOKED_AT_ONCE))
        turn, members = self._round % turns, self._state.members
        return [
            view
            for place, view in enumerate(views)
            if place % turns == turn
            or view.spec.name in troubled
            or (view.sample is not None and is_notable(members[view.spec.name], view.sample))
        ]

    def _room(self, now_s: float) -> Reading:
        if self._own_capacity:
            return self._own_capacity
        return self._facts.capacity(
            lambda: {
                spec.cgroup: value_or(self._subjects[spec.name].used_bytes, 0.0) for spec in self._specs
            },
            now_s,
        )

    def _subject(self, seen: WorkloadView, troubled: set[str], excluded: bool) -> Subject:
        spec, sample = seen.spec, seen.sample
        used: Reading = 0.0 if sample is None else sample.memory_working_set_bytes
        facts = _NO_FACTS if sample is None else self._facts.of(spec.cgroup)
        full = NOT_MEASURED if sample is None else sample.memory_full_pct
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
            restarted=sample is not None and sample.has(Quality.RESTARTED),
            ahead=None if self._ahead is None else self._ahead.of(spec.name),
        )


def rules_of(config: SizingConfig) -> ShapingRules:
    """The operator's choices as the shaper has them."""
    k2 = {Resource.MEMORY: config.k2, Resource.CPU: min(config.k2, 1.0)}
    settings = ShaperSettings(config.k1_pct / 100.0, k2)
    return ShapingRules(Mode(config.shaper), config.interval_s, settings, config.hard_limit)


def merged(settings: Settings, limits: ShapedLimits, knobs: frozenset[str]) -> Settings:
    """Both wishes: the greater protection, the lower ceiling, frozen if either says so; what cannot be set is left."""
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
    """The lower of a ceiling that may be absent and another one."""
    return min(ceiling, other) if isinstance(ceiling, int) else other
