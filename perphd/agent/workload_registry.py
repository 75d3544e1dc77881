"""Changes the list of workloads when they are configured, added, found, moved or removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from perphd.agent.announcer import Announcer
from perphd.agent.indicators import Indicators
from perphd.agent.leftovers import Leftovers
from perphd.agent.models import Models
from perphd.agent.modes import Modes
from perphd.agent.planned import PlannedSettings
from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.trials import Trials
from perphd.agent.workload_list import WorkloadList
from perphd.agent.workload_traces import WorkloadTraces
from perphd.config.discovery import Discovery
from perphd.config.file import Config
from perphd.config.match import is_lasting
from perphd.config.opt_in import DECLARATION
from perphd.config.workloads import relation_of
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError
from perphd.domain.event import EventKind
from perphd.domain.workload import WorkloadSpec
from perphd.isolation.executor import Executor

DISCOVER_S = 5.0
"""Seconds between two searches for control groups."""
FORGET_S = 60.0
"""Seconds of absence after which a found workload is restored and removed."""


class WorkloadRegistry:
    """Adds, changes and removes workloads. perphd restores workloads that leave the list.

    ``lock``: held during a round, and by operations that must not overlap one.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        discovery: Discovery,
        modes: Modes,
        models: Models,
        trials: Trials,
        executor: Executor,
        leftovers: Leftovers,
        indicators: Indicators,
        traces: WorkloadTraces,
        planned: PlannedSettings,
        records: Records,
        announcer: Announcer,
    ) -> None:
        self._lock, self._config, self._clock = lock, config, clock
        self._workloads, self._discovery, self._modes = workloads, discovery, modes
        self._models, self._trials, self._executor = models, trials, executor
        self._leftovers, self._indicators, self._traces = leftovers, indicators, traces
        self._planned, self._records, self._announcer = planned, records, announcer
        self._looked_s: float | None = None

    async def follow(self, now_s: float) -> None:
        """Search for control groups, and retry the restore of removed workloads, when that is due."""
        await self.discover(now_s)
        await self._leftovers.give_back(now_s)

    async def discover(self, now_s: float) -> None:
        """Add workloads that match declarations, follow workloads that moved, and remove those that stay absent."""
        discovery, workloads = self._discovery, self._workloads
        opt_in = self._config.now.opt_in
        if not (workloads.declared or workloads.found or opt_in.is_on):
            return
        if self._looked_s is not None and 0 <= now_s - self._looked_s < DISCOVER_S:
            return
        self._looked_s = now_s
        given = tuple(spec for name, spec in workloads.specs.items() if name not in workloads.found)
        found = discovery.look(tuple(workloads.declared.values()), given, opt_in)
        for name, before in workloads.self_declared():
            # A running workload that withdraws its declaration, or changes its kind, is removed at once.
            now = found.specs.get(name)
            if discovery.exists(before.cgroup) if now is None else now.kind is not before.kind:
                await self.let_go(name)
        for name in self._renamed(found.specs):
            await self.let_go(name)
        for name, spec in found.specs.items():
            here = workloads.specs.get(name)
            if here is None:
                await self.add(spec)
            elif here.cgroup != spec.cgroup:
                await self._move(spec)
            elif here != spec and (here.declared_by or spec.declared_by):
                await self._change(spec)
            if name in workloads.specs:  # it may have been removed in the meantime
                workloads.note_found(name, found.declared_as[name], now_s)
        for name, known in list(workloads.found.items()):
            is_one = name == known.declaration and name in workloads.declared
            if name not in found.specs and not is_one and now_s - known.seen_s >= FORGET_S:
                await self.let_go(name)
        for name in workloads.declared:
            self._records.problem(f"match:{name}", found.problems.get(name), now_s)
        self._records.problem("opt_in", found.problems.get(DECLARATION), now_s)

    async def add(self, spec: WorkloadSpec, by: Actor | None = None) -> None:
        """Add a workload that was checked against the others. It replaces a workload with the same name.

        It displaces workloads that declared themselves and conflict with it.
        """
        if not spec.declared_by:
            for name in self._in_the_way((spec,)):
                await self.let_go(name)
        async with self._lock:
            if not spec.cgroup:  # perphd must find it by its match
                self._workloads.declare(spec)
                self._looked_s = None
                return
            self._workloads.put(spec)
            await self._indicators.follow()
        said = f", declared by {spec.declared_by}" if spec.declared_by else ""
        self._announcer.tell(EventKind.WORKLOAD, f"{spec.kind} {spec.name} added{said}", spec.name, by)

    async def add_job(self, spec: WorkloadSpec) -> str:
        """Add a job of the batch queue. Returns the reason why that is impossible, or an empty text."""
        for other in self._workloads.specs.values():
            if other.name == spec.name:
                return f"a workload is already named {spec.name!r}"
            if (relation := relation_of(spec.cgroup, other.cgroup)) is not None:
                return f"{spec.cgroup} {relation} of workload {other.name!r}"
        self._workloads.put_job(spec)
        await self.add(spec)
        return ""

    async def let_job_go(self, name: str) -> None:
        """Remove an ended job of the batch queue."""
        if self._workloads.drop_job(name):
            await self.let_go(name)
            self._modes.forget(name)

    async def remove(self, name: str, by: Actor | None = None) -> None:
        """Restore a workload's settings and forget it. An LRA's protection ends at the next tick.

        Removing a declaration removes the workloads found for it.

        Raises:
            ConfigError: no such workload, or one that was found by a declaration, which would find it again.
        """
        workloads = self._workloads
        if workloads.withdraw(name):
            self._records.problem(f"match:{name}", None, self._clock.now_s)
            for found in workloads.found_for(name):
                await self.let_go(found, by)
            self._modes.forget_declaration(name)
            self._discovery.forget_processes(tuple(workloads.declared.values()))
            return
        if name not in workloads.specs:
            raise workloads.unknown(name)
        declaration = workloads.declaration_of(name)
        if declaration is not None and declaration in workloads.declared:
            problem = f"{name!r} was found for {declaration!r} and would be found again"
            raise ConfigError("request", "workload", problem, declaration)
        if (by_itself := workloads.specs[name].declared_by) != "":
            problem = f"{name!r} is declared by {by_itself} and would be found again"
            raise ConfigError(
                "request", "workload", problem, "set a mode for it, or change the declaration there"
            )
        if name in workloads.jobs:
            raise ConfigError("request", "workload", f"{name!r} is a job", "perphctl cancel ends a job")
        await self.let_go(name, by)
        self._modes.forget(name)

    async def reload(self, config: Config, by: Actor | None = None) -> None:
        """Apply a configuration that was read and checked. Models of workloads that stay are kept.

        A mode that was set manually stays, unless the configured mode itself has changed or the workload is removed.
        """
        workloads = self._workloads
        new = {spec.name: spec for spec in config.workloads}
        declared = {spec.name: spec for spec in config.matches}
        for name, spec in workloads.declared.items():
            if not is_lasting(spec.match) and name not in new:
                declared.setdefault(name, spec)  # no file can contain this match
        for name in workloads.declared.keys() - declared.keys():
            self._records.problem(f"match:{name}", None, self._clock.now_s)
        workloads.forget_found(new)
        for name, known in workloads.found.items():
            to_be, was = declared.get(known.declaration), workloads.declared.get(known.declaration)
            if to_be is not None and was is not None and (to_be.match, to_be.kind) == (was.match, was.kind):
                new.setdefault(name, replace(to_be, name=name, cgroup=workloads.specs[name].cgroup))
        for name, spec in workloads.jobs.items():
            new.setdefault(name, spec)
        in_the_way = self._in_the_way(config.workloads)
        for name, spec in workloads.self_declared():
            if name not in in_the_way:  # if it is, the next search decides
                new.setdefault(name, spec)
        withdrawn = workloads.declared.keys() - declared.keys() - new.keys()
        removed = [
            name
            for name, old in workloads.specs.items()
            if name not in new and name not in workloads.found and not old.declared_by
        ]
        workloads.redeclare(declared)
        self._looked_s = None
        for name, old in list(workloads.specs.items()):
            if name not in new or (new[name].cgroup, new[name].kind) != (old.cgroup, old.kind):
                await self.let_go(name)
        for name in removed:
            self._modes.forget(name)
        for name in withdrawn:
            self._modes.forget_declaration(name)
        async with self._lock:
            await self._models.written()
            if why := _changed(self._config.now, config):
                self._modes.end_trial(f"the configuration of {why} changed", by)
            else:
                self._trials.interrupt("the configuration was reloaded")
            configured = self._config.now.daemon.mode
            waiting = self._config.reload(config)
            if config.daemon.mode is not configured:
                self._modes.begin(config.daemon.mode)
            for name, old in workloads.specs.items():
                self._models.keep_if_counted_alike(old, new.get(name, old), self._clock.now_s)
            workloads.replace_all(new)  # others were found or added while some were being removed
            self._traces.configuration_changed()
            self._executor.forget_conflicts()
        text = "configuration reloaded"
        if waiting:
            text += f"; a restart is needed for {', '.join(waiting)}"
        if self._modes.general is not config.daemon.mode:
            text += f"; the mode stays {self._modes.general}, set by hand (configured: {config.daemon.mode})"
        self._announcer.tell(EventKind.RELOAD, text, by=by)

    async def let_go(self, name: str, by: Actor | None = None) -> None:
        """Restore a workload and remove it. Its declaration stays.

        A manually set mode stays as well, because the workload may return within a minute.
        """
        async with self._lock:
            if name not in self._workloads.specs:  # it was removed in the meantime
                return
            self._workloads.forget_found((name,))
            report = await self._executor.restore((name,))
            await self._models.written()
            self._leftovers.note(name, report, self._clock.now_s)
            self._workloads.drop(name)
            self._traces.forget(name)
            self._models.forget(name, self._clock.now_s)
            self._records.forget(name)
            self._records.problem(f"missing:{name}", None, self._clock.now_s)
        self._announcer.tell(EventKind.WORKLOAD, f"{name} removed", name, by)

    def _in_the_way(self, specs: Iterable[WorkloadSpec]) -> set[str]:
        """Self-declared workloads that conflict with the name or the control group of a workload in ``specs``.

        The operator's declaration takes precedence.
        """
        return {
            name
            for name, by_itself in self._workloads.self_declared()
            for spec in specs
            if name == spec.name or (spec.cgroup and relation_of(by_itself.cgroup, spec.cgroup) is not None)
        }

    def _renamed(self, specs: Mapping[str, WorkloadSpec]) -> list[str]:
        """Workloads found earlier whose groups are now found under other names."""
        return [
            name
            for name in self._workloads.found
            if name not in specs
            and (old := self._workloads.specs.get(name)) is not None
            and any(relation_of(spec.cgroup, old.cgroup) is not None for spec in specs.values())
        ]

    async def _change(self, spec: WorkloadSpec) -> None:
        """Apply a changed declaration, made by the workload or the operator."""
        async with self._lock:
            old = self._workloads.specs.get(spec.name)
            if old is None:  # it was removed in the meantime
                return
            await self._models.written()
            self._models.keep_if_counted_alike(old, spec, self._clock.now_s)
            self._workloads.put(spec)
            self._traces.declaration_changed(spec.name)
        by = spec.declared_by or "the operator"
        self._announcer.tell(EventKind.WORKLOAD, f"declaration changed, by {by}", spec.name)

    async def _move(self, spec: WorkloadSpec) -> None:
        """Follow a workload to another control group, and restore the previous one."""
        async with self._lock:
            if spec.name not in self._workloads.specs:  # it was removed in the meantime
                return
            report = await self._executor.restore((spec.name,))
            left = f"left:{spec.name}"
            if report.failed:  # it stays in its old group, and the next search retries
                text = (
                    f"{spec.name}: found in {spec.cgroup}, but its old group is not fully restored: {report}"
                )
                self._records.problem(left, text, self._clock.now_s, about=left)
                self._planned.discard()
                return
            self._records.problem(left, None, self._clock.now_s)
            self._records.healed(left)
            self._workloads.put(spec)
            self._traces.forget(spec.name)
        self._announcer.tell(EventKind.WORKLOAD, f"now found in {spec.cgroup}", spec.name)


def _changed(old: Config, new: Config) -> str:
    """The changes of a reload that end a trial, in words; empty if there are none.

    After such a change, the rest of the trial would be another experiment.
    """
    parts = (
        ("the mode", old.daemon.mode, new.daemon.mode),
        ("the policy", (old.daemon.policy, old.policy), (new.daemon.policy, new.policy)),
        ("workloads", (old.workloads, old.matches), (new.workloads, new.matches)),
    )
    return ", ".join(name for name, before, after in parts if before != after)
