"""The agent: one tick of sample -> learn -> decide -> enforce -> record, and all requests to it.

It owns all mutable state of the running daemon. Time comes in with every tick (simulated hosts run in virtual
time). A real host may also pass a clock, because reading SLIs takes time.

``state`` holds shared state, ``control_loop`` runs the ticks, ``workload_registry`` lists workloads,
``modes`` knows which workloads are enforced, ``protections`` knows what protects each LRA, and ``status``
summarises the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from perphd.admission.calibration import self_test
from perphd.admission.declaring import suggestions
from perphd.admission.whatif import whatif
from perphd.agent import counting
from perphd.agent.band_lines import band_lines
from perphd.agent.control_loop import ControlLoop
from perphd.agent.fitting import Fitting
from perphd.agent.forecasts import FORECASTS_OFF
from perphd.agent.model_view import model_view
from perphd.agent.modes import Modes
from perphd.agent.protections import Protections
from perphd.agent.queue.room import QueueRoom
from perphd.agent.rounds import Round
from perphd.agent.state import Parts, State, unknown_workload
from perphd.agent.status import status_of
from perphd.agent.tally import Tally
from perphd.agent.trials import Population, by_text, configured_modes
from perphd.agent.triggers import EarlyTicks
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.config.file import Config
from perphd.domain.allocation import Settings
from perphd.domain.belief import ModelOrigin, ModelSummary, ModelView
from perphd.domain.capability import Capabilities
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Actor, Pause
from perphd.domain.decision import Consequences, Decision
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import NotEnforceable
from perphd.domain.policy import Snapshot
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.status import AgentStatus
from perphd.domain.suggestion import Suggestion
from perphd.domain.topology import Topology
from perphd.domain.whatif import Arrival, WhatIf
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.host.throttle import capability
from perphd.isolation.restore_report import RestoreReport
from perphd.monitor.sli import SliReading
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShaperView
from perphd.trial.design import Request
from perphd.trial.record import End, TrialRecord

if TYPE_CHECKING:
    from perphd.agent.queue.batch_queue import BatchQueue


class Agent:
    """The agent; see the module. Not thread-safe: everything runs on one event loop, and ticks never overlap."""

    def __init__(self, config: Config, parts: Parts, clock: Callable[[], float] | None = None) -> None:
        self._state = State.at_start(config, parts, clock)
        self._modes = Modes(self._state)
        self._registry = WorkloadRegistry(self._state, self._modes)
        self._protections = Protections(self._state, self._modes)
        self._loop = ControlLoop(self._state, self._modes, self._registry, self._protections)
        if parts.queue is not None:
            parts.queue.attach(QueueRoom(self._state, self._modes, self._registry))

    async def tick(self, now_s: float, period_s: float | None = None) -> None:
        """Run one tick at ``now_s`` (monotonic seconds). Failures of single workloads do not abort it.

        ``period_s``: the planned time since the previous tick; by default the configured period.
        """
        await self._loop.tick(now_s, period_s)

    @property
    def pace_s(self) -> float:
        """Planned seconds between the last tick and the next one."""
        return self._state.pace_s

    def missed(self, ticks: int) -> None:
        """Count ticks that the loop skipped because it was late."""
        self._state.cost.missed_ticks += ticks

    async def stop(self, restore: bool) -> RestoreReport | None:
        """Stop the agent: restore original values if requested, and close every descriptor.

        The agent cannot be used afterwards. Returns the restore report; None without a restore.
        """
        parts = self._state.parts
        report: RestoreReport | None = None
        # Closes everything, whatever fails; what is pushed last is closed first.
        async with self._state.lock, AsyncExitStack() as ending:
            for part in reversed(parts.owned):
                ending.callback(part.close)
            ending.callback(parts.executor.close)
            if parts.early_ticks is not None:
                ending.callback(parts.early_ticks.close)
            ending.callback(parts.monitor.close)
            ending.push_async_callback(parts.sli.close)
            if parts.rounds is not None:
                ending.callback(parts.rounds.end)
            ending.callback(parts.records.end_subscriptions)
            if restore:
                report = await parts.executor.restore()
            else:
                with suppress(KernelError):  # if this fails, the daemon's next start restores
                    parts.executor.keep()
            save = self._state.began_s is not None and self._state.config.daemon.model_save_s > 0
            parts.models.close(self._state.all_specs(), self._state.now_s, save)
        return report

    # -- asked from outside -------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._state.config

    @property
    def declared(self) -> tuple[WorkloadSpec, ...]:
        """Workloads declared by match, whether or not a control group was found for them."""
        return tuple(self._state.declared.values())

    @property
    def capabilities(self) -> Capabilities:
        """The host's capabilities: as probed at start, with the present state of resctrl and of measurements.

        They include the sources of indicators and their resolutions.
        """
        now = self._state.parts.capabilities_now
        known = self._state.parts.capabilities if now is None else now()
        throttle = self._state.actuators.throttle
        found = Capabilities((*known.items, capability(throttle))) if throttle.levels else known
        measured = counting.with_measured(found, self._state)
        return Capabilities((*measured.items, *self._state.parts.sli.capabilities()))

    @property
    def queue(self) -> BatchQueue | None:
        """The batch queue; None if it is disabled or jobs cannot be started on this host."""
        return self._state.parts.queue

    async def oom_order(self) -> tuple[str, ...]:
        """Workloads that the kernel may kill for memory before workloads of a lower band, and the remedy.

        This may read hundreds of files for each workload, in a thread.
        """
        order, specs = self._state.parts.oom_order, tuple(self._state.all_specs())
        return () if order is None else await asyncio.to_thread(order.broken, specs)

    def bands(self) -> tuple[str, ...]:
        """The mechanisms of each declared band on this host, and the substitutes for missing ones."""
        return band_lines(self._state, self._modes)

    def contended(self) -> tuple[ContendedDevice, ...]:
        """The devices from which batch is being backed off."""
        backoff = self._state.parts.backoff
        return () if backoff is None else backoff.rows()

    @property
    def early_ticks(self) -> EarlyTicks | None:
        """The source of early ticks; None in virtual time."""
        return self._state.parts.early_ticks

    @property
    def topology(self) -> Topology:
        """The host's processors at the last round."""
        return self._state.topology

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The newest samples by workload."""
        return self._state.samples

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons."""
        return self._state.parts.executor.enforceable(spec)

    def in_force(self, name: str) -> Settings:
        """The settings that perphd has applied to this workload, as last read back.

        All other knobs, and those of resctrl, are KEEP.
        """
        return self._state.parts.executor.in_force(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload whose value differs from the target."""
        return self._state.parts.executor.blocked(name)

    def actuators(self) -> Actuators:
        """The present bounds of resctrl's controls."""
        return self._state.parts.actuators()

    def test_detector(self) -> None:
        """Check the detector's false-alarm rate. Status and metrics show the result; a failure is reported as
        a problem.
        """
        config = self._state.config
        self._state.detector_test = self_test(config.policy, config.daemon.period_s)

    def status(self) -> AgentStatus:
        """The present state of the agent."""
        return status_of(self._state, self._modes)

    @property
    def tally(self) -> Tally:
        """The counters since the start."""
        return self._state.parts.tally

    def whatif(self, arrival: Arrival) -> WhatIf:
        """Predicted effect on the LRAs if this work arrived now. Never raises, and changes nothing."""
        return whatif(self._loop.snapshot(self._state.now_s), arrival, self._state.config.policy)

    def snapshot(self) -> Snapshot:
        """The host and its workloads as a policy would see them now. Changes nothing."""
        return self._loop.snapshot(self._state.now_s)

    def shaper(self) -> ShaperView:
        """The resource shaper: targets, workloads that make room, and reclaimable memory."""
        shaping = self._state.parts.shaping
        if shaping is None:
            missing = Unavailable("this daemon was started without a resource shaper")
            return ShaperView("off", 0.0, missing, missing)
        return shaping.view()

    def memory_fits(self) -> tuple[FitView, ...]:
        """All searches for a memory limit."""
        fitting = self._state.parts.fitting
        return () if fitting is None else fitting.views()

    def start_memory_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        """Start a search for a workload's memory limit. Raises ConfigError if the search is refused."""
        fitting = self._fitting()
        snapshot = self._loop.snapshot(self._state.now_s)
        view = next((each for each in snapshot.workloads if each.spec.name == name), None)
        if view is None:
            raise unknown_workload(name, self._state.specs)
        fitting.start(view, samples, step)
        self._state.tell(EventKind.SIZING, f"{name}: memory fit started", name, by)

    def apply_memory_fit(self, name: str, by: Actor | None = None) -> int:
        """Keep a search's result in force; returns the limit. Raises ConfigError if there is no result yet."""
        limit = self._fitting().apply(name)
        self._state.tell(EventKind.SIZING, f"{name}: memory fit, {limit >> 20} MiB applied", name, by)
        return limit

    def stop_memory_fit(self, name: str, by: Actor | None = None) -> None:
        """End a search, or remove its applied limit. Raises ConfigError if there is none."""
        self._fitting().stop(name)
        self._state.tell(EventKind.SIZING, f"{name}: memory fit stopped", name, by)

    def _fitting(self) -> Fitting:
        fitting = self._state.parts.fitting
        if fitting is None:
            raise ConfigError(
                "request", "workload", "this daemon was started without the search for memory limits", ""
            )
        return fitting

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Undeclared groups that the operator should declare, and the expected gain. Changes nothing."""
        return suggestions(self._loop.snapshot(self._state.now_s), self._state.undeclared)

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        """The latest decisions about this LRA, newest first, made at or before ``at_s`` (monotonic).

        For batch: decisions about LRAs that changed its settings.
        """
        records, spec = self._state.parts.records, self._state.specs.get(workload)
        if spec is not None and spec.kind is Kind.BATCH:
            return records.decisions_about_batch(workload, at_s, limit)
        return records.decisions(workload, at_s, limit)

    def consequences(self, decision: Decision) -> Consequences:
        """The writes that followed a decision, and its outcome."""
        return self._state.parts.records.consequences(decision)

    def set_mode(self, mode: Mode, workload: str | None = None, by: Actor | None = None) -> None:
        """Set observe or enforce for one workload, or for all (which clears the modes of single workloads).

        The mode of a declaration applies to every workload found for it. After a restore, enforcing one
        workload leaves all others observed.

        Raises:
            ConfigError: no such workload.
        """
        self._modes.set(mode, workload, by)

    async def pause(
        self, workload: str | None, for_s: float | None, reason: str, by: Actor | None = None
    ) -> tuple[Pause, RestoreReport]:
        """Stop changing a workload (None: every workload), and restore its settings at once.

        The pause survives reload, restart and upgrade. ``for_s``: its length in seconds; None: it lasts until
        ``resume``.

        Raises:
            ConfigError: no such workload, or the pause cannot be stored.
        """
        names = None if workload is None else self._modes.names(workload)
        # Rounds continue while the pause is being stored.
        pause = await self._state.parts.pauses.begin(workload or "", for_s, reason, str(by or "perphd"))
        async with self._state.lock:
            report = await self._state.parts.executor.restore(names)
            for name in names if names is not None else tuple(self._state.protections):
                self._state.protections.pop(name, None)
            self._state.planned = None
        text = f"{workload or 'all workloads'}: paused{f' ({reason})' if reason else ''}; {report}"
        self._state.tell(EventKind.PAUSE, text, workload or "", by)
        return pause, report

    async def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        """End the pause of a workload (None: every manual pause). Returns the ended pauses.

        Raises:
            ConfigError: no such workload, or the change cannot be stored.
        """
        if workload is not None:
            self._modes.names(workload)
        ended = await self._state.parts.pauses.end(workload)
        self._state.parts.executor.forget_conflicts()
        self._state.planned = None
        for pause in ended:
            text = f"{pause.workload or 'all workloads'}: resumed"
            self._state.tell(EventKind.PAUSE, text, pause.workload, by)
        return ended

    async def start_trial(self, request: Request, by: Actor | None = None) -> TrialRecord:
        """Start a randomised trial of observe and enforce.

        Raises:
            ConfigError: these workloads cannot take part now, a trial is running, or perphd is paused.
        """
        state = self._state
        async with state.lock:
            specs = state.all_specs()
            left_out = tuple(spec.name for spec in specs if self._modes.own(spec) is Mode.OBSERVE)
            samples = state.samples | state.full_samples
            configured = configured_modes(state.config)
            people = Population(specs, samples, left_out, state.parts.policy.name, configured)
        record = await state.parts.trials.start(request, people, state.parts.pauses.all(), by_text(by))
        state.planned = None
        text = f"trial {record.plan.trial} began: {record.plan.blocks} blocks of {record.plan.block_s:g} s"
        state.tell(EventKind.TRIAL, f"{text}, seed {record.plan.seed}", by=by)
        return record

    def stop_trial(self, by: Actor | None = None) -> TrialRecord:
        """End the running trial and return to the modes before it.

        Raises:
            ConfigError: no trial is running.
        """
        record = self._state.parts.trials.end(End.STOPPED, "stopped by hand", by_text(by))
        if record is None:
            raise ConfigError("request", "trial", "no trial is running", "perphctl trial start begins one")
        self._state.planned = None
        self._state.tell(EventKind.TRIAL, f"trial {record.plan.trial} ended: stopped by hand", by=by)
        return record

    def trial(self) -> TrialRecord | None:
        """The running trial, else the last one."""
        return self._state.parts.trials.record

    async def add_workload(self, spec: WorkloadSpec, by: Actor | None = None) -> None:
        """Add a workload that was checked against the others. It replaces a workload with the same name."""
        await self._registry.add(spec, by)

    async def remove_workload(self, name: str, by: Actor | None = None) -> None:
        """Restore a workload's settings and forget it. An LRA's protection ends at the next tick.

        Removing a declaration removes the workloads found for it.

        Raises:
            ConfigError: no such workload, or one that was found by a declaration, which would find it again.
        """
        await self._registry.remove(name, by)
        if self._state.parts.trials.names_lra(name):
            self._modes.end_trial(f"{name} was removed from the list of workloads", by)

    def push_sli(self, workload: str, reading: SliReading) -> None:
        """Accept a reading that the application delivers. Raises ConfigError if its SLI source is not ``push``."""
        self._state.parts.sli.push(workload, reading, self._state.time_s(self._state.now_s))
        if self._state.parts.early_ticks is not None and workload in self._state.specs:
            self._state.parts.early_ticks.pushed(workload, self._state.specs[workload].objective, reading)

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> RestoreReport:
        """Return to observe mode and restore every original value. ``ignore_lock``: see ``isolation.restore``."""
        async with self._state.lock:
            self._modes.end_trial("perphctl restore", by)
            self._modes.halt()
            report = await self._state.parts.executor.restore(ignore_lock=ignore_lock)
            self._state.protections.clear()
            self._state.planned = None
        self._state.tell(EventKind.RESTORE, f"{report}; all workloads: observe", by=by)
        return report

    async def reload(self, config: Config, by: Actor | None = None) -> None:
        """Apply a configuration that was read and checked. Models of workloads that stay are kept."""
        await self._registry.reload(config, by)

    def models(self) -> tuple[ModelSummary, ...]:
        """Summaries of the LRAs' models."""
        return tuple(
            self._state.parts.models.summary(spec)
            for spec in self._state.all_specs()
            if spec.kind is Kind.LRA
        )

    def model_view(self, lra: str) -> ModelView:
        """The full state of an LRA's model. Raises ConfigError if there is no such LRA."""
        spec = self._state.lra(lra)
        model = self._state.parts.models.model(lra)
        snapshot = self._loop.snapshot(self._state.now_s)
        return model_view(
            model,
            self._state.parts.models.summary(spec),
            snapshot,
            lra,
            self._state.config.policy.confidence_z,
        )

    def model_origin(self, workload: str) -> ModelOrigin:
        """The origin of a workload's model and of its forecasts. Raises ConfigError if there is no such workload."""
        spec, worker = self._state.workload(workload), self._state.parts.forecasts
        found = self._state.parts.models.origin(spec, self._state.application(workload))
        if worker is None or not self._state.config.federated.folder:
            return found
        return replace(found, forecasts=worker.origins(workload))

    def export_model(self, lra: str) -> str:
        """The model as the text of a file.

        Raises ConfigError if there is no such LRA, PerphError if it has no model.
        """
        return self._state.parts.models.export(self._state.lra(lra), self._state.now_s)

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """Replace an LRA's model by the model in ``text``. Returns warnings for the operator.

        Raises:
            ConfigError: no such LRA.
            ModelFileError: the text is refused; nothing has changed.
        """
        async with self._state.lock:
            spec = self._state.lra(lra)
            await self._state.parts.models.written()
            self._state.parts.models.follow((spec,), self._state.now_s, self._state.application)
            warnings = self._state.parts.models.take(spec, text, self._state.now_s, rename)
        self._state.tell(EventKind.WORKLOAD, "model imported", lra)
        return warnings

    async def reset_model(self, lra: str) -> None:
        """Discard an LRA's model. Raises ConfigError (no such LRA) or KernelError (its files cannot be moved)."""
        async with self._state.lock:
            await self._state.parts.models.written()
            self._state.parts.models.reset(self._state.lra(lra), self._state.now_s)
        self._state.tell(EventKind.WORKLOAD, "model reset", lra)

    def forecasts(self) -> bytes | Unavailable:
        """The forecast worker's latest publication, as JSON; or the reason why there is none."""
        worker = self._state.parts.forecasts
        return Unavailable(FORECASTS_OFF) if worker is None else worker.published()

    def subscribe(self) -> AsyncIterator[Event]:
        """All events from now on; ends when the agent stops."""
        return self._state.parts.records.subscribe()

    def rounds(self) -> AsyncIterator[Round]:
        """Every complete decision round from now on, for a recording; ends when the agent stops."""
        assert self._state.parts.rounds is not None
        return self._state.parts.rounds.rounds()
