"""The agent: one round of sample -> learn -> decide -> enforce -> record, and everything that may be asked of it.

It owns all mutable state of the running daemon. Time comes in with every tick (simulated hosts run in virtual
time); on a real host a clock may be given, because reading SLIs takes a while.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from perphd import __version__
from perphd.admission.inferer import untouched
from perphd.admission.whatif import whatif
from perphd.agent.config import Config
from perphd.agent.discovery import Discovery
from perphd.agent.learning import observations
from perphd.agent.match import is_lasting
from perphd.agent.model_view import model_view
from perphd.agent.models import Models
from perphd.agent.records import KEPT_LEFT, Records
from perphd.agent.rounds import Round, RoundTap
from perphd.agent.selfcost import CostMeter
from perphd.agent.sli import SliBoard
from perphd.agent.wake import Waker
from perphd.domain.allocation import UNTOUCHED, Allocation, Settings
from perphd.domain.belief import ModelSummary, ModelView
from perphd.domain.capability import Capabilities
from perphd.domain.decision import Aftermath, Decision, Health
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import NotEnforceable
from perphd.domain.policy import HostView, Policy, Snapshot, TargetState, WorkloadView
from perphd.domain.quick import maker
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Quality, Sample, with_flag
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.topology import Topology
from perphd.domain.whatif import Arrival, WhatIf
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.host.topology import Processors
from perphd.isolation.executor import Executor
from perphd.isolation.restore import RestoreReport
from perphd.monitor.hostload import HostLoad
from perphd.monitor.links import LinkLoad
from perphd.monitor.sampler import Monitor
from perphd.monitor.sli import SliReading

RESYNC_S = 5.0
"""The kernel is read back so often even when nothing new is wanted, to notice foreign writers."""
_STEADY_KNOBS = ("memory_high_bytes", "memory.high")
"""Writes of these do not disturb what a sample says about CPU."""
_SHARED_KNOBS = frozenset({"cpus", "cpu_weight", "llc_masks", "mba_pct"})
"""What of batch makes up every LRA's protection: if one of them is blocked, nobody has what was chosen for it."""
DISCOVER_S = 5.0
"""Control groups that are to be found are looked for so often."""
LEFT_S = 30.0
"""What could not be given back of a workload that is off the list is tried again so often."""
CALM_TIMES = 3.0
"""Of the time, one part in so many at most is spent on settling after groups that (re)appear."""
FORGET_S = 60.0
"""One of many that was found is forgotten, and what was set on it given back, when it has been gone so long."""
ENFORCEABLE_S = 60.0
"""What can be enforced on a workload is looked at anew so often, and when its cgroup (re)appears."""


_make_view = maker(WorkloadView)


class Closable(Protocol):
    """Something that holds descriptors, threads or locks."""

    def close(self) -> None:
        """Give them back."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the composition root puts together; ``owned`` is closed, in order, when the agent stops."""

    topology: Topology
    processors: Processors
    capabilities: Capabilities
    monitor: Monitor
    host_load: HostLoad
    executor: Executor
    policy: Policy
    sli: SliBoard
    records: Records
    models: Models
    actuators: Callable[[], Actuators] = Actuators
    rounds: RoundTap | None = None
    waker: Waker | None = None
    links: LinkLoad | None = None
    discovery: Discovery | None = None
    owned: tuple[Closable, ...] = ()


@dataclass(slots=True)
class _Protection:
    """``disturbed_s``: when it last began to settle anew for groups that (re)appeared and were set alone."""

    allocation: Allocation
    since_s: float
    disturbed_s: float = -math.inf


@dataclass(slots=True)
class _FoundAs:
    """A workload that was found: for which declaration, and when it was last there."""

    declaration: str
    seen_s: float


@dataclass(slots=True)
class _Enforceable:
    knobs: frozenset[str]
    missing: tuple[NotEnforceable, ...]
    looked_s: float
    present: bool


class Agent:
    """See the module. Not thread-safe: everything runs on one event loop; ticks never overlap."""

    def __init__(self, config: Config, parts: Parts, clock: Callable[[], float] | None = None) -> None:
        self._config = config
        self._parts = parts
        self._clock = clock
        self._mode = config.daemon.mode
        self._modes: dict[str, Mode] = {}
        self._halted = False  # by restore: whatever mode a workload has of its own, or is found with
        self._specs: dict[str, WorkloadSpec] = {spec.name: spec for spec in config.workloads}
        self._models = parts.models
        self._topology = parts.topology
        self._memory: object = None
        self._actuators = parts.actuators()
        self._declared = {spec.name: spec for spec in config.matches}
        self._found: dict[str, _FoundAs] = {}
        self._left: dict[str, float] = {}
        self._looked_s: float | None = None
        self._samples: dict[str, Sample] = {}
        self._protections: dict[str, _Protection] = {}
        self._enforceable: dict[str, _Enforceable] = {}
        self._planned: tuple[dict[str, Settings], float] | None = None
        self._cost = CostMeter()
        self._tick = 0
        self._began_s: float | None = None
        self._now_s = 0.0
        self._lock = asyncio.Lock()
        self._sli_followed = False
        self._conflicts: set[str] = set()
        self._busy_cores: Reading = NOT_MEASURED
        self._network_pct: Reading = NOT_MEASURED

    # -- one round ----------------------------------------------------------------------------------

    async def tick(self, now_s: float) -> None:
        """One round at ``now_s`` (monotonic seconds). Failures of single workloads do not lose the round."""
        await self._discover(now_s)
        await self._give_back_left(now_s)
        async with self._lock:
            if not self._sli_followed:
                await self._parts.sli.follow(self._all_specs())
                self._sli_followed = True
            readings = await self._parts.sli.read(now_s)
            if self._clock is not None:
                now_s = self._clock()
            waited = time.perf_counter()
            self._now_s = now_s
            self._began_s = now_s if self._began_s is None else self._began_s
            self._follow_processors(now_s)
            specs = self._all_specs()
            self._models.follow(specs, now_s)
            samples = self._parts.monitor.sample(now_s, specs, readings)
            self._busy_cores = self._parts.host_load.read(now_s)
            if self._parts.links is not None:
                self._network_pct = self._parts.links.read(now_s)
            self._take_samples(samples)
            snapshot = self._snapshot(now_s)
            self._learn(snapshot)
            deciding = time.perf_counter()
            target = self._parts.policy.decide(snapshot)
            self._memory = target.memory
            await self._enforce(target, now_s, deciding)
            self._record(target, tuple(self._samples.values()), now_s)
            self._models.save_when_due(specs, now_s, self._config.daemon.model_save_s)
            self._listen(target)
            self._tick += 1
            # The wait for applications' answers is theirs, not ours.
            self._cost.tick(now_s, time.perf_counter() - waited)

    def _listen(self, target: TargetState) -> None:
        """Every LRA that is there can ask for a look between two ticks; what the last asked for was for something?"""
        waker = self._parts.waker
        if waker is None:
            return
        lras = [s for s in self._specs.values() if s.kind is Kind.LRA]
        waker.follow({s.name: s.cgroup for s in lras if not self._samples[s.name].has(Quality.GONE)})
        troubled = (Health.SUSPECT, Health.DEGRADED)
        waker.answered(waker.take(), {d.workload for d in target.decisions if d.verdict.health in troubled})

    def _follow_processors(self, now_s: float) -> None:
        """CPUs came or went: what was decided counts and numbers cores that mean others now. It is decided anew.

        Until then nothing is held back, as without perphd; and what the kernel refused it may take now.
        """
        found = self._parts.processors.look()
        if found is None:
            return
        text = f"CPUs {found.online} are online, before {self._topology.online}: everything is decided anew"
        self._topology = found
        self._memory = self._planned = None
        self._protections.clear()
        self._enforceable.clear()
        self._parts.executor.forget_conflicts()
        self._parts.records.event(Event(now_s, EventKind.HOST, text))

    async def _discover(self, now_s: float) -> None:
        """Take in what the declared matches stand for now, follow what has moved, let go what stays away."""
        discovery = self._parts.discovery
        if discovery is None or not (self._declared or self._found):
            return
        if self._looked_s is not None and 0 <= now_s - self._looked_s < DISCOVER_S:
            return
        self._looked_s = now_s
        given = tuple(spec for name, spec in self._specs.items() if name not in self._found)
        found = discovery.look(tuple(self._declared.values()), given)
        for name, spec in found.specs.items():
            if name not in self._specs:
                await self.add_workload(spec)
            elif self._specs[name].cgroup != spec.cgroup:
                await self._move(spec)
            self._found[name] = _FoundAs(found.declared_as[name], now_s)
        for name, known in list(self._found.items()):
            is_one = name == known.declaration and name in self._declared
            if name not in found.specs and not is_one and now_s - known.seen_s >= FORGET_S:
                await self._let_go(name)
        for name in self._declared:
            self._parts.records.problem(f"match:{name}", found.problems.get(name), now_s)

    async def _give_back_left(self, now_s: float) -> None:
        """What could not be given back of workloads that are off the list is tried again, until nothing is left."""
        for name, tried_s in list(self._left.items()):
            if 0 <= now_s - tried_s < LEFT_S:
                continue
            async with self._lock:
                back = name in self._specs  # then the loop looks after it
                report = RestoreReport() if back else await self._parts.executor.restore((name,))
                self._note_left(name, report, now_s)

    def _note_left(self, name: str, report: RestoreReport, now_s: float) -> None:
        text = f"{name}: not all was given back: {report}" if report.failed or report.foreign else None
        self._parts.records.left_behind(f"left:{name}", text, now_s)
        self._left.pop(name, None)
        if text is not None:
            self._left[name] = now_s
            while len(self._left) > KEPT_LEFT:
                del self._left[next(iter(self._left))]

    async def _move(self, spec: WorkloadSpec) -> None:
        """A workload that has another control group now; what was set on the one before goes back."""
        async with self._lock:
            report = await self._parts.executor.restore((spec.name,))
            left = f"left:{spec.name}"
            if report.failed:  # it stays where it was, so that the next look tries again
                text = (
                    f"{spec.name}: found in {spec.cgroup}, but not all was given back where it was: {report}"
                )
                self._parts.records.problem(left, text, self._now_s, about=left)
                self._planned = None
                return
            self._parts.records.problem(left, None, self._now_s)
            self._parts.records.healed(left)
            self._specs[spec.name] = spec
            for kept in (self._protections, self._enforceable, self._samples):
                kept.pop(spec.name, None)
            self._planned = None
            self._sli_followed = False
        self._parts.records.event(
            Event(self._now_s, EventKind.WORKLOAD, f"found in {spec.cgroup} now", spec.name)
        )

    def _take_samples(self, samples: Sequence[Sample]) -> None:
        self._samples = {sample.workload: self._flag_settling(sample) for sample in samples}

    def _flag_settling(self, sample: Sample) -> Sample:
        protection = self._protections.get(sample.workload)
        if protection is None:
            return sample
        begin_s = sample.at_s - sample.interval_s + 0.2 * self._config.daemon.period_s
        if begin_s >= protection.since_s + self._config.policy.settle_s:
            return sample
        return with_flag(sample, Quality.SETTLING)

    def _snapshot(self, now_s: float) -> Snapshot:
        views = tuple(self._view(spec, now_s) for spec in self._all_specs())
        return Snapshot(
            tick=self._tick,
            at_s=now_s,
            period_s=self._config.daemon.period_s,
            host=HostView(
                self._topology,
                busy_cores=self._busy_cores,
                llc_ways=self._actuators.llc_ways,
                min_cbm_bits=self._actuators.min_cbm_bits,
                mba_levels_pct=self._actuators.mba_levels_pct,
                network_pct=self._network_pct,
            ),
            workloads=views,
            memory=self._memory,
        )

    def _view(self, spec: WorkloadSpec, now_s: float) -> WorkloadView:
        sample = self._samples.get(spec.name)
        present = sample is not None and not sample.has(Quality.GONE)
        is_lra = spec.kind is Kind.LRA
        protection = self._protections.get(spec.name)
        return _make_view(
            spec=spec,
            sample=sample if present else None,
            model=self._models.model(spec.name) if is_lra else None,
            protection=protection.allocation if protection is not None else None,
            protected_since_s=protection.since_s if protection is not None else 0.0,
            enforceable=self._knobs(spec, present, now_s),
            enforced=self.mode_of(spec) is Mode.ENFORCE,
        )

    def _knobs(self, spec: WorkloadSpec, present: bool, now_s: float) -> frozenset[str]:
        known = self._enforceable.get(spec.name)
        if known is None or known.present != present or now_s - known.looked_s >= ENFORCEABLE_S:
            knobs, missing = self._parts.executor.enforceable(spec)
            if knobs & {"llc_masks", "mba_pct"} and self._actuators == Actuators():
                self._actuators = self._parts.actuators()  # resctrl was mounted after the start
            # All are looked at when they are first seen, and then in turns, so that no later tick pays for all.
            early_s = len(self._enforceable) % ENFORCEABLE_S if known is None else 0.0
            known = _Enforceable(knobs, missing, now_s - early_s, present)
            self._enforceable[spec.name] = known
        return known.knobs

    def _learn(self, snapshot: Snapshot) -> None:
        in_force = [protection.allocation for protection in self._protections.values()]
        for name, seen in observations(snapshot, in_force, self._config.policy.batch_idle_cores):
            self._models.model(name).observe(seen)

    async def _enforce(self, target: TargetState, now_s: float, deciding: float) -> None:
        wanted = {
            name: target.settings.get(name, UNTOUCHED) if self.mode_of(spec) is Mode.ENFORCE else UNTOUCHED
            for name, spec in self._specs.items()
        }
        # A cgroup that (re)appeared has the kernel's defaults, whatever was written to the one before it.
        fresh = {s.workload for s in self._samples.values() if s.has(Quality.FIRST, Quality.RESTARTED)}
        new = bool(fresh) or self._planned is None or self._planned[0] != wanted
        if not new and self._planned is not None and now_s - self._planned[1] < RESYNC_S:
            self._note_protections(target, now_s, changed=False)
            return
        executor = self._parts.executor
        changes = executor.plan(wanted, self._all_specs(), now_s)
        self._planned = (wanted, now_s)
        if changes.reason:
            self._parts.records.problem("apply", changes.reason, now_s, about="nothing can be written")
            return
        if not changes:
            self._parts.records.problem("apply", None, now_s)
            self._note_protections(target, now_s, changed=False)
            return
        applied = await executor.apply(changes)
        self._cost.wrote(time.perf_counter() - deciding)
        if applied.ok:
            self._parts.records.change(now_s, changes, "written")
            self._parts.records.problem("apply", None, now_s)
            for about in ("nothing can be written", *(write.path for write in applied.written)):
                self._parts.records.healed(about)
            steady = all(write.knob in _STEADY_KNOBS for write in changes.writes)
            again = all(write.workload in fresh for write in changes.writes)
            self._note_protections(target, now_s, changed=not steady, again=again)
        else:
            self._planned = None
            self._parts.records.change(now_s, changes, "failed and undone")
            text = f"a change could not be made and was undone: {applied.failed}"
            if applied.problems:
                text += "; not undone: " + "; ".join(applied.problems)
            about = applied.failed.path if applied.failed is not None else "apply"
            self._parts.records.problem("apply", text, now_s, about)

    def _note_protections(
        self, target: TargetState, now_s: float, changed: bool, again: bool = False
    ) -> None:
        """Remember what is now in force for each LRA: its decision's choice, if it and some batch are enforced.

        ``again``: what changed was set on groups that (re)appeared, and on nobody else.
        """
        batch_enforced = any(
            spec.kind is Kind.BATCH and self.mode_of(spec) is Mode.ENFORCE for spec in self._specs.values()
        )
        when_s = self._clock() if self._clock is not None else now_s
        if any(
            _SHARED_KNOBS.intersection(self._parts.executor.blocked(spec.name))
            for spec in self._specs.values()
            if self._gives_way(spec)
        ):
            return  # what was chosen is not what is in force: the policy goes on judging what is
        nothing = untouched(len(self._topology.usable_cores) or 1)
        for decision in target.decisions:
            spec = self._specs.get(decision.workload)
            if spec is None:
                continue
            before = self._protections.get(spec.name)
            # Cores of its own an LRA can have without any batch, too.
            protects = batch_enforced or decision.chosen.cpu.own_cores is not None
            enforced = protects and self.mode_of(spec) is Mode.ENFORCE
            allocation = decision.chosen if enforced else nothing
            if allocation.cpu.exclusive and "cpus" in self._parts.executor.blocked(spec.name):
                continue  # it could not be kept to its own cores: what was in force for it still is
            if before is None and allocation == nothing:
                continue
            if before is None or before.allocation != allocation:
                self._protections[spec.name] = _Protection(allocation, when_s)
            elif changed and not (again and when_s - before.disturbed_s < self._calm_s):
                # Another LRA's change moved batch as well: this one's surroundings changed too. But batch that comes
                # and goes for ever, and is set each time, must not keep everybody from ever being judged.
                before.since_s = when_s
                if again:
                    before.disturbed_s = when_s

    @property
    def _calm_s(self) -> float:
        """So long after groups that (re)appeared were set, others that do count for nothing."""
        policy = self._config.policy
        return CALM_TIMES * (policy.settle_s + policy.evaluate_ticks * self._config.daemon.period_s)

    def _gives_way(self, spec: WorkloadSpec) -> bool:
        """True for batch that the operator lets perphd set and of which something can be set."""
        known = self._enforceable.get(spec.name)
        settable = known is not None and known.knobs & {"cpus", "cpu_weight"}
        return spec.kind is Kind.BATCH and self.mode_of(spec) is Mode.ENFORCE and bool(settable)

    def _record(self, target: TargetState, samples: tuple[Sample, ...], now_s: float) -> None:
        records = self._parts.records
        records.samples(samples)
        for decision in target.decisions:
            spec = self._specs.get(decision.workload)
            records.decision(decision, spec is not None and self.mode_of(spec) is Mode.ENFORCE)
        for outcome in target.outcomes:
            records.outcome(outcome)
        for name, spec in self._specs.items():
            missing = name not in self._samples or self._samples[name].has(Quality.GONE)
            text = None
            if missing:
                text = f"{spec.kind} {name!r}: cgroup {spec.cgroup} does not exist; waiting for it"
            records.problem(f"missing:{name}", text, now_s)
        conflicts = {f"conflict:{c.path}": str(c) for c in self._parts.executor.conflicts() if c.yielded}
        for key in self._conflicts - conflicts.keys():
            records.problem(key, None, now_s)
        for key, text in conflicts.items():
            records.problem(key, text, now_s)
        self._conflicts = set(conflicts)
        records.event(Event(now_s, EventKind.TICK, f"tick {self._tick}"))

    # -- asked from outside -------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    @property
    def declared(self) -> tuple[WorkloadSpec, ...]:
        """The workloads whose control groups are looked for, whether anything was found for them or not."""
        return tuple(self._declared.values())

    @property
    def capabilities(self) -> Capabilities:
        """What the host can do, as found at start."""
        return self._parts.capabilities

    @property
    def waker(self) -> Waker | None:
        """What asks for a look between two ticks; None where time is virtual."""
        return self._parts.waker

    @property
    def topology(self) -> Topology:
        """The host's processors, as of the last round."""
        return self._topology

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The newest samples by workload."""
        return self._samples

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons."""
        return self._parts.executor.enforceable(spec)

    def in_force(self, name: str) -> Settings:
        """What perphd has set on this workload, as last read back; KEEP where nothing (and for resctrl's)."""
        return self._parts.executor.in_force(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that are not as they were last wanted."""
        return self._parts.executor.blocked(name)

    def actuators(self) -> Actuators:
        """The bounds of what resctrl can set here, now."""
        return self._parts.actuators()

    def mode_of(self, spec: WorkloadSpec) -> Mode:
        """The mode in force for a workload: set at run time, else observe after a restore, else its own or all's."""
        own = self._modes.get(spec.name)
        if own is None and (found := self._found.get(spec.name)) is not None:
            own = self._modes.get(found.declaration)
        if own is None:
            own = Mode.OBSERVE if self._halted else spec.mode
        return own if own is not None else self._mode

    def status(self) -> AgentStatus:
        """The agent as a whole, now."""
        records = self._parts.records
        return AgentStatus(
            version=__version__,
            mode=self._mode,
            policy=self._parts.policy.name,
            period_s=self._config.daemon.period_s,
            tick=self._tick,
            uptime_s=self._now_s - self._began_s if self._began_s is not None else 0.0,
            workloads=(
                *(self._workload_status(spec) for spec in self._all_specs()),
                *(self._workload_status(spec) for spec in self._not_found()),
            ),
            journal_entries=self._parts.executor.journal_entries,
            cost=self._cost.cost(),
            problems=(*self._config.warnings, *records.problems),
        )

    def whatif(self, arrival: Arrival) -> WhatIf:
        """What would become of the LRAs if this work came now. Raises nothing; changes nothing."""
        return whatif(self._snapshot(self._now_s), arrival, self._config.policy)

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        """The latest decisions about this LRA, newest first, none made after ``at_s`` (monotonic)."""
        return self._parts.records.decisions(workload, at_s, limit)

    def aftermath(self, decision: Decision) -> Aftermath:
        """What was written when this was decided, and what came of it."""
        return self._parts.records.aftermath(decision)

    def set_mode(self, mode: Mode, workload: str | None = None) -> None:
        """Observe or enforce: for one workload, or for all (which forgets what was set for single ones).

        For a declaration it is the mode of everything that is found for it.
        After a restore everybody else goes on observing when one is to be enforced again.

        Raises:
            ConfigError: no such workload.
        """
        if workload is None:
            self._mode = mode
            self._modes.clear()
            self._halted = False
        elif workload in self._specs or workload in self._declared:
            if workload in self._declared:
                self._forget_modes(workload)
            self._modes[workload] = mode
        else:
            known = ", ".join(self._declared | self._specs)
            raise ConfigError("request", "workload", f"no workload is named {workload!r}", known)
        self._parts.executor.forget_conflicts()
        who = workload if workload is not None else "all workloads"
        self._parts.records.event(Event(self._now_s, EventKind.MODE, f"{who}: {mode}", workload or ""))

    async def add_workload(self, spec: WorkloadSpec) -> None:
        """Take a workload, already checked against the others, into the loop; replaces one of that name."""
        async with self._lock:
            if not spec.cgroup:  # to be found
                self._declared[spec.name] = spec
                self._looked_s = None
                return
            self._specs[spec.name] = spec
            await self._parts.sli.follow(self._all_specs())
        self._parts.records.event(Event(self._now_s, EventKind.WORKLOAD, f"{spec.kind} added", spec.name))

    async def remove_workload(self, name: str) -> None:
        """Give a workload's settings back and forget it. An LRA's protection ends at the next tick.

        A declaration takes along what was found for it.

        Raises:
            ConfigError: no such workload, or one that was found: it would be found again.
        """
        if self._declared.pop(name, None) is not None:
            self._parts.records.problem(f"match:{name}", None, self._now_s)
            for found in [one for one, known in self._found.items() if known.declaration == name]:
                await self._let_go(found)
            self._forget_modes(name)
            if self._parts.discovery is not None:
                self._parts.discovery.forget_processes(self.declared)
            return
        if name not in self._specs:
            known = ", ".join(self._declared | self._specs)
            raise ConfigError("request", "workload", f"no workload is named {name!r}", known)
        if (one := self._found.get(name)) is not None and one.declaration in self._declared:
            problem = f"{name!r} was found for {one.declaration!r} and would be found again"
            raise ConfigError("request", "workload", problem, one.declaration)
        await self._let_go(name)
        self._modes.pop(name, None)

    def _forget_modes(self, declaration: str) -> None:
        """Of this declaration, and of what was ever found for it."""
        others = self._specs.keys() - {
            one for one, known in self._found.items() if known.declaration == declaration
        }
        for name in [one for one in self._modes if one == declaration or one.startswith(f"{declaration}.")]:
            if name not in others:
                del self._modes[name]

    async def _let_go(self, name: str) -> None:
        """Give back what was set on a workload, and forget it. What it was found for is still looked for.

        Nor is the mode forgotten that somebody set for it: it may be back in a minute.
        """
        async with self._lock:
            if name not in self._specs:  # meanwhile it went another way
                return
            self._found.pop(name, None)
            report = await self._parts.executor.restore((name,))
            self._note_left(name, report, self._now_s)
            del self._specs[name]
            for kept in (self._protections, self._enforceable, self._samples):
                kept.pop(name, None)
            self._models.forget(name, self._now_s)
            self._parts.records.forget(name)
            self._parts.records.problem(f"missing:{name}", None, self._now_s)
            self._planned = None
            self._sli_followed = False
        self._parts.records.event(Event(self._now_s, EventKind.WORKLOAD, "removed", name))

    def push_sli(self, workload: str, reading: SliReading) -> None:
        """A reading that the application itself delivers. Raises ConfigError if its SLI source is not ``push``."""
        self._parts.sli.push(workload, reading, self._clock() if self._clock is not None else self._now_s)
        if self._parts.waker is not None and workload in self._specs:
            self._parts.waker.heard(workload, self._specs[workload].objective, reading)

    async def restore(self) -> RestoreReport:
        """Go back to observing and put every original value back."""
        async with self._lock:
            self._mode = Mode.OBSERVE
            self._modes.clear()
            self._halted = True
            report = await self._parts.executor.restore()
            self._protections.clear()
            self._planned = None
        self._parts.records.event(Event(self._now_s, EventKind.RESTORE, str(report)))
        return report

    async def reload(self, config: Config) -> None:
        """Take over a configuration that was read and checked. Models of workloads that stay are kept."""
        new = {spec.name: spec for spec in config.workloads}
        declared = {spec.name: spec for spec in config.matches}
        for name, spec in self._declared.items():
            if not is_lasting(spec.match) and name not in new:
                declared.setdefault(name, spec)  # no file could have named it
        for name in self._declared.keys() - declared.keys():
            self._parts.records.problem(f"match:{name}", None, self._now_s)
        self._found = {name: known for name, known in self._found.items() if name not in new}
        for name, known in self._found.items():
            to_be, was = declared.get(known.declaration), self._declared.get(known.declaration)
            if to_be is not None and was is not None and (to_be.match, to_be.kind) == (was.match, was.kind):
                new.setdefault(name, replace(to_be, name=name, cgroup=self._specs[name].cgroup))
        self._declared, self._looked_s = declared, None
        for name, old in list(self._specs.items()):
            if name not in new or (new[name].cgroup, new[name].kind) != (old.cgroup, old.kind):
                await self._let_go(name)
        async with self._lock:
            # What only a start can change stays as it is.
            daemon = replace(config.daemon, period_s=self._config.daemon.period_s)
            self._config = replace(
                config, daemon=daemon, policy=self._config.policy, store=self._config.store
            )
            self._mode = config.daemon.mode
            self._modes.clear()
            self._halted = False
            for name, old in self._specs.items():
                self._models.keep_if_counted_alike(old, new.get(name, old), self._now_s)
            # What is there beside them was found, or added, while others were let go.
            self._specs = new | {name: spec for name, spec in self._specs.items() if name not in new}
            self._enforceable.clear()
            self._parts.executor.forget_conflicts()
            self._sli_followed = False
            self._planned = None
        text = "configuration read again; changes of period, socket, store and policy settings need a restart"
        self._parts.records.event(Event(self._now_s, EventKind.RELOAD, text))

    def models(self) -> tuple[ModelSummary, ...]:
        """The LRAs' models, in a line each."""
        return tuple(self._models.summary(spec) for spec in self._all_specs() if spec.kind is Kind.LRA)

    def model_view(self, lra: str) -> ModelView:
        """All that an LRA's model believes. Raises ConfigError if there is no such LRA."""
        spec = self._lra(lra)
        model = self._models.model(lra)
        snapshot = self._snapshot(self._now_s)
        return model_view(model, self._models.summary(spec), snapshot, lra, self._config.policy.confidence_z)

    def export_model(self, lra: str) -> str:
        """The model as the text of a file. Raises ConfigError if there is no such LRA, PerphError if it has none."""
        return self._models.export(self._lra(lra), self._now_s)

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """Replace an LRA's model by the one in this text; returns warnings.

        Raises:
            ConfigError: no such LRA.
            ModelFileError: the text is refused; nothing has changed.
        """
        async with self._lock:
            spec = self._lra(lra)
            self._models.follow((spec,), self._now_s)
            warnings = self._models.take(spec, text, self._now_s, rename)
        self._parts.records.event(Event(self._now_s, EventKind.WORKLOAD, "model imported", lra))
        return warnings

    async def reset_model(self, lra: str) -> None:
        """Begin anew with an LRA. Raises ConfigError (no such LRA), KernelError (its files cannot be moved)."""
        async with self._lock:
            self._models.reset(self._lra(lra), self._now_s)
        self._parts.records.event(Event(self._now_s, EventKind.WORKLOAD, "model reset", lra))

    def subscribe(self) -> AsyncIterator[Event]:
        """Everything that happens from now on; ends when the agent stops."""
        return self._parts.records.subscribe()

    def rounds(self) -> AsyncIterator[Round]:
        """Every round of decisions from now on, whole, for a recording; ends when the agent stops."""
        assert self._parts.rounds is not None
        return self._parts.rounds.rounds()

    async def stop(self, restore: bool) -> RestoreReport | None:
        """End: give everything back if asked to, close every descriptor. The agent cannot be used afterwards."""
        async with self._lock:
            report = await self._parts.executor.restore() if restore else None
            if not restore:
                with suppress(KernelError):  # then the next start gives everything back
                    self._parts.executor.keep()
            save = self._began_s is not None and self._config.daemon.model_save_s > 0
            self._models.close(self._all_specs(), self._now_s, save)
            self._parts.records.end_subscriptions()
            if self._parts.rounds is not None:
                self._parts.rounds.end()
            await self._parts.sli.close()
            self._parts.monitor.close()
            if self._parts.waker is not None:
                self._parts.waker.close()
            self._parts.executor.close()
            for part in self._parts.owned:
                part.close()
        return report

    # -- helpers ------------------------------------------------------------------------------------

    def missed(self, ticks: int) -> None:
        """The loop was late and left out so many rounds."""
        self._cost.missed_ticks += ticks

    def _lra(self, name: str) -> WorkloadSpec:
        spec = self._specs.get(name)
        if spec is None or spec.kind is not Kind.LRA:
            lras_here = ", ".join(s.name for s in self._specs.values() if s.kind is Kind.LRA)
            raise ConfigError("request", "workload", f"no LRA is named {name!r}", lras_here)
        return spec

    def _not_found(self) -> list[WorkloadSpec]:
        """Declarations for which nothing was ever found, or is left."""
        there = {known.declaration for known in self._found.values()}
        return [spec for name, spec in self._declared.items() if name not in there]

    def _all_specs(self) -> tuple[WorkloadSpec, ...]:
        return tuple(self._specs.values())

    def _ceiling_missing(self, spec: WorkloadSpec, known: _Enforceable | None) -> tuple[NotEnforceable, ...]:
        """Why batch has not the egress ceiling that is configured; policies ask only for what can be had."""
        network = self._config.network
        asked = network.names and network.batch_egress_max_bytes and self.mode_of(spec) is Mode.ENFORCE
        if known is None or not asked or spec.kind is not Kind.BATCH:
            return ()
        return tuple(left for left in known.missing if left.knob == "egress_max")

    def _workload_status(self, spec: WorkloadSpec) -> WorkloadStatus:
        sample = self._samples.get(spec.name)
        present = sample is not None and not sample.has(Quality.GONE)
        protection = self._protections.get(spec.name)
        known, executor = self._enforceable.get(spec.name), self._parts.executor
        return WorkloadStatus(
            spec=spec,
            present=present,
            mode=self.mode_of(spec),
            sample=sample,
            decision=self._parts.records.last_decision(spec.name),
            outcome=self._parts.records.last_outcome(spec.name),
            protection=protection.allocation if protection is not None else None,
            in_force=self._parts.executor.in_force(spec.name),
            not_enforceable=known.missing if known is not None else (),
            limited=(
                *executor.not_enforceable(spec.name),
                *executor.limited(spec.name),
                *self._ceiling_missing(spec, known),
            ),
            problem=""
            if present
            else f"waiting for {f'cgroup {spec.cgroup}' if spec.cgroup else spec.match}",
        )
