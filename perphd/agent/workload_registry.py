"""The list of workloads: configured, added, found, moved and removed, with pending restores of removed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from perphd.agent.modes import Modes
from perphd.agent.records import KEPT_LEFT
from perphd.agent.state import FoundAs, State, unknown_workload
from perphd.config.file import Config, reloaded
from perphd.config.match import is_lasting
from perphd.config.opt_in import DECLARATION
from perphd.config.workloads import relation_of
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError
from perphd.domain.event import EventKind
from perphd.domain.workload import WorkloadSpec
from perphd.isolation.restore_report import RestoreReport

DISCOVER_S = 5.0
"""Seconds between two searches for control groups."""
LEFT_S = 30.0
"""Seconds between two attempts to restore the remaining settings of a removed workload."""
FORGET_S = 60.0
"""Seconds of absence after which a found workload is restored and removed."""


class WorkloadRegistry:
    """The list of workloads. perphd restores workloads that leave it."""

    def __init__(self, state: State, modes: Modes) -> None:
        self._state, self._modes = state, modes
        self._left: dict[str, float] = {}
        self._looked_s: float | None = None

    async def discover(self, now_s: float) -> None:
        """Add workloads that match declarations, follow workloads that moved, and remove those that stay absent."""
        discovery = self._state.parts.discovery
        opt_in = self._state.config.opt_in
        if discovery is None or not (self._state.declared or self._state.found or opt_in.is_on):
            return
        if self._looked_s is not None and 0 <= now_s - self._looked_s < DISCOVER_S:
            return
        self._looked_s = now_s
        given = tuple(spec for name, spec in self._state.specs.items() if name not in self._state.found)
        found = discovery.look(tuple(self._state.declared.values()), given, opt_in)
        for name, before in self._by_themselves():
            # A running workload that withdraws its declaration, or changes its kind, is removed at once.
            now = found.specs.get(name)
            if discovery.exists(before.cgroup) if now is None else now.kind is not before.kind:
                await self.let_go(name)
        for name in self._renamed(found.specs):
            await self.let_go(name)
        for name, spec in found.specs.items():
            here = self._state.specs.get(name)
            if here is None:
                await self.add(spec)
            elif here.cgroup != spec.cgroup:
                await self._move(spec)
            elif here != spec and (here.declared_by or spec.declared_by):
                await self._change(spec)
            self._state.found[name] = FoundAs(found.declared_as[name], now_s)
        for name, known in list(self._state.found.items()):
            is_one = name == known.declaration and name in self._state.declared
            if name not in found.specs and not is_one and now_s - known.seen_s >= FORGET_S:
                await self.let_go(name)
        for name in self._state.declared:
            self._state.parts.records.problem(f"match:{name}", found.problems.get(name), now_s)
        self._state.parts.records.problem("opt_in", found.problems.get(DECLARATION), now_s)

    async def give_back_left(self, now_s: float) -> None:
        """Retry the restore of removed workloads until nothing is left."""
        for name, tried_s in list(self._left.items()):
            if 0 <= now_s - tried_s < LEFT_S:
                continue
            async with self._state.lock:
                back = name in self._state.specs  # the loop manages the workload again
                report = RestoreReport() if back else await self._state.parts.executor.restore((name,))
                self._note_left(name, report, now_s)

    async def add(self, spec: WorkloadSpec, by: Actor | None = None) -> None:
        """Add a workload that was checked against the others. It replaces a workload with the same name.

        It displaces a workload that declared itself.
        """
        if not spec.declared_by:
            for name in self._in_the_way((spec,)):
                await self.let_go(name)
        async with self._state.lock:
            if not spec.cgroup:  # perphd must find it by its match
                self._state.declared[spec.name] = spec
                self._looked_s = None
                return
            self._state.specs[spec.name] = spec
            await self._state.parts.sli.follow(self._state.all_specs())
        said = f", declared by {spec.declared_by}" if spec.declared_by else ""
        self._state.tell(EventKind.WORKLOAD, f"{spec.kind} {spec.name} added{said}", spec.name, by)

    async def add_job(self, spec: WorkloadSpec) -> str:
        """Add a job of the batch queue. Returns the reason why that is impossible, or an empty text."""
        for other in self._state.specs.values():
            if other.name == spec.name:
                return f"a workload is already named {spec.name!r}"
            if (relation := relation_of(spec.cgroup, other.cgroup)) is not None:
                return f"{spec.cgroup} {relation} of workload {other.name!r}"
        self._state.jobs[spec.name] = spec
        await self.add(spec)
        return ""

    async def let_job_go(self, name: str) -> None:
        """Remove an ended job of the batch queue."""
        if self._state.jobs.pop(name, None) is not None:
            await self.let_go(name)
            self._modes.forget(name)

    async def remove(self, name: str, by: Actor | None = None) -> None:
        """Restore a workload's settings and forget it. An LRA's protection ends at the next tick.

        Removing a declaration removes the workloads found for it.

        Raises:
            ConfigError: no such workload, or one that was found by a declaration, which would find it again.
        """
        if self._state.declared.pop(name, None) is not None:
            self._state.parts.records.problem(f"match:{name}", None, self._state.now_s)
            for found in [one for one, known in self._state.found.items() if known.declaration == name]:
                await self.let_go(found, by)
            self._modes.forget_declaration(name)
            if self._state.parts.discovery is not None:
                self._state.parts.discovery.forget_processes(tuple(self._state.declared.values()))
            return
        if name not in self._state.specs:
            raise unknown_workload(name, self._state.declared | self._state.specs)
        if (one := self._state.found.get(name)) is not None and one.declaration in self._state.declared:
            problem = f"{name!r} was found for {one.declaration!r} and would be found again"
            raise ConfigError("request", "workload", problem, one.declaration)
        if (by_itself := self._state.specs[name].declared_by) != "":
            problem = f"{name!r} is declared by {by_itself} and would be found again"
            raise ConfigError(
                "request", "workload", problem, "set a mode for it, or change the declaration there"
            )
        if name in self._state.jobs:
            raise ConfigError("request", "workload", f"{name!r} is a job", "perphctl cancel ends a job")
        await self.let_go(name, by)
        self._modes.forget(name)

    async def reload(self, config: Config, by: Actor | None = None) -> None:
        """Apply a configuration that was read and checked. Models of workloads that stay are kept.

        A mode that was set manually stays, unless the configured mode itself has changed.
        """
        new = {spec.name: spec for spec in config.workloads}
        declared = {spec.name: spec for spec in config.matches}
        for name, spec in self._state.declared.items():
            if not is_lasting(spec.match) and name not in new:
                declared.setdefault(name, spec)  # no file can contain this name
        for name in self._state.declared.keys() - declared.keys():
            self._state.parts.records.problem(f"match:{name}", None, self._state.now_s)
        self._state.found = {name: known for name, known in self._state.found.items() if name not in new}
        for name, known in self._state.found.items():
            to_be, was = declared.get(known.declaration), self._state.declared.get(known.declaration)
            if to_be is not None and was is not None and (to_be.match, to_be.kind) == (was.match, was.kind):
                new.setdefault(name, replace(to_be, name=name, cgroup=self._state.specs[name].cgroup))
        for name, spec in self._state.jobs.items():
            new.setdefault(name, spec)
        in_the_way = self._in_the_way(config.workloads)
        for name, spec in self._by_themselves():
            if name not in in_the_way:  # if it is, the next search decides
                new.setdefault(name, spec)
        self._state.declared, self._looked_s = declared, None
        for name, old in list(self._state.specs.items()):
            if name not in new or (new[name].cgroup, new[name].kind) != (old.cgroup, old.kind):
                await self.let_go(name)
        async with self._state.lock:
            await self._state.parts.models.written()
            if why := _changed(self._state.config, config):
                self._modes.end_trial(f"the configuration of {why} changed", by)
            else:
                self._state.parts.trials.interrupt("the configuration was reloaded")
            configured = self._state.config.daemon.mode
            self._state.config, waiting = reloaded(self._state.config, config)
            if config.daemon.mode is not configured:
                self._modes.begin(config.daemon.mode)
            for name, old in self._state.specs.items():
                self._state.parts.models.keep_if_counted_alike(old, new.get(name, old), self._state.now_s)
            # Workloads that were found or added while others were being removed.
            self._state.specs = new | {
                name: spec for name, spec in self._state.specs.items() if name not in new
            }
            self._state.enforceable.clear()
            self._state.parts.executor.forget_conflicts()
            self._state.sli_followed = False
            self._state.planned = None
        text = "configuration reloaded"
        if waiting:
            text += f"; a restart is needed for {', '.join(waiting)}"
        if self._modes.general is not config.daemon.mode:
            text += f"; the mode stays {self._modes.general}, set by hand (configured: {config.daemon.mode})"
        self._state.tell(EventKind.RELOAD, text, by=by)

    async def let_go(self, name: str, by: Actor | None = None) -> None:
        """Restore a workload and remove it. Its declaration stays.

        A manually set mode stays as well, because the workload may return within a minute.
        """
        async with self._state.lock:
            if name not in self._state.specs:  # it was removed in the meantime
                return
            self._state.found.pop(name, None)
            report = await self._state.parts.executor.restore((name,))
            await self._state.parts.models.written()
            self._note_left(name, report, self._state.now_s)
            del self._state.specs[name]
            self._state.forget(name)
            self._state.parts.models.forget(name, self._state.now_s)
            self._state.parts.records.forget(name)
            self._state.parts.records.problem(f"missing:{name}", None, self._state.now_s)
        self._state.tell(EventKind.WORKLOAD, f"{name} removed", name, by)

    def _by_themselves(self) -> list[tuple[str, WorkloadSpec]]:
        """Workloads that declared themselves."""
        return [(name, spec) for name, spec in self._state.specs.items() if spec.declared_by]

    def _in_the_way(self, specs: Iterable[WorkloadSpec]) -> set[str]:
        """Self-declared workloads that conflict with the name or the control group of a workload in ``specs``.

        The operator's declaration takes precedence.
        """
        return {
            name
            for name, by_itself in self._by_themselves()
            for spec in specs
            if name == spec.name or (spec.cgroup and relation_of(by_itself.cgroup, spec.cgroup) is not None)
        }

    def _renamed(self, specs: Mapping[str, WorkloadSpec]) -> list[str]:
        """Workloads found earlier whose groups are now found under other names."""
        return [
            name
            for name in self._state.found
            if name not in specs
            and (old := self._state.specs.get(name)) is not None
            and any(relation_of(spec.cgroup, old.cgroup) is not None for spec in specs.values())
        ]

    async def _change(self, spec: WorkloadSpec) -> None:
        """Apply a changed declaration, made by the workload or the operator."""
        async with self._state.lock:
            old = self._state.specs[spec.name]
            await self._state.parts.models.written()
            self._state.parts.models.keep_if_counted_alike(old, spec, self._state.now_s)
            self._state.specs[spec.name] = spec
            self._state.enforceable.pop(spec.name, None)
            self._state.sli_followed = False
            self._state.planned = None
        by = spec.declared_by or "the operator"
        self._state.tell(EventKind.WORKLOAD, f"declaration changed, by {by}", spec.name)

    async def _move(self, spec: WorkloadSpec) -> None:
        """Follow a workload to another control group, and restore the previous one."""
        async with self._state.lock:
            report = await self._state.parts.executor.restore((spec.name,))
            left = f"left:{spec.name}"
            if report.failed:  # it stays in its old group, and the next search retries
                text = (
                    f"{spec.name}: found in {spec.cgroup}, but its old group is not fully restored: {report}"
                )
                self._state.parts.records.problem(left, text, self._state.now_s, about=left)
                self._state.planned = None
                return
            self._state.parts.records.problem(left, None, self._state.now_s)
            self._state.parts.records.healed(left)
            self._state.specs[spec.name] = spec
            self._state.sli_followed = False
            self._state.forget(spec.name)
        self._state.tell(EventKind.WORKLOAD, f"now found in {spec.cgroup}", spec.name)

    def _note_left(self, name: str, report: RestoreReport, now_s: float) -> None:
        text = f"{name}: not everything was restored: {report}" if report.failed or report.foreign else None
        self._state.parts.records.left_behind(f"left:{name}", text, now_s)
        self._left.pop(name, None)
        if text is not None:
            self._left[name] = now_s
            while len(self._left) > KEPT_LEFT:
                del self._left[next(iter(self._left))]


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
