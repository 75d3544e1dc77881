"""The agent: one round of sample -> learn -> decide -> enforce -> record, and everything that may be asked of it.

It owns all mutable state of the running daemon. Time comes in with every tick (simulated hosts run in virtual
time); on a real host a clock may be given, because reading SLIs takes a while.

``state`` holds what all parts share, ``control_loop`` runs the ticks, ``workload_registry`` lists workloads,
``modes`` knows who is enforced, ``protections`` what is in force for whom, ``status`` summarises it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from perphd.admission.calibration import self_test
from perphd.admission.declaring import suggestions
from perphd.admission.whatif import whatif
from perphd.agent import counting
from perphd.agent.control_loop import ControlLoop
from perphd.agent.fitting import Fitting
from perphd.agent.forecasts import FORECASTS_OFF
from perphd.agent.model_view import model_view
from perphd.agent.modes import Modes
from perphd.agent.protections import Protections
from perphd.agent.queue.room import QueueRoom
from perphd.agent.rounds import Round
from perphd.agent.state import Parts, State
from perphd.agent.status import status_of
from perphd.agent.tally import Tally
from perphd.agent.trials import Population, by_text, configured_modes
from perphd.agent.triggers import EarlyTicks
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.config.file import Config
from perphd.domain.allocation import Settings
from perphd.domain.belief import ModelSummary, ModelView
from perphd.domain.capability import Capabilities
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Actor, Pause
from perphd.domain.decision import Aftermath, Decision
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
    """See the module. Not thread-safe: everything runs on one event loop; ticks never overlap."""

    def __init__(self, config: Config, parts: Parts, clock: Callable[[], float] | None = None) -> None:
        self._state = State.at_start(config, parts, clock)
        self._modes = Modes(self._state)
        self._registry = WorkloadRegistry(self._state, self._modes)
        self._protections = Protections(self._state, self._modes)
        self._loop = ControlLoop(self._state, self._modes, self._registry, self._protections)
        if parts.queue is not None:
            parts.queue.attach(QueueRoom(self._state, self._modes, self._registry))

    async def tick(self, now_s: float, period_s: float | None = None) -> None:
        """One round at ``now_s`` (monotonic seconds). Failures of single workloads do not lose the round.

        ``period_s``: the time that was to pass since the one before it; as configured if not given.
        """
        await self._loop.tick(now_s, period_s)

    @property
    def pace_s(self) -> float:
        """How long after the last round the next one is wanted, in seconds."""
        return self._state.pace_s

    def missed(self, ticks: int) -> None:
        """Count rounds that the loop left out because it was late."""
        self._state.cost.missed_ticks += ticks

    async def stop(self, restore: bool) -> RestoreReport | None:
        """End: give everything back if asked to, close every descriptor. The agent cannot be used afterwards."""
        async with self._state.lock:
            report = await self._state.parts.executor.restore() if restore else None
            if not restore:
                with suppress(KernelError):  # then the next start gives everything back
                    self._state.parts.executor.keep()
            save = self._state.began_s is not None and self._state.config.daemon.model_save_s > 0
            self._state.parts.models.close(self._state.all_specs(), self._state.now_s, save)
            self._state.parts.records.end_subscriptions()
            if self._state.parts.rounds is not None:
                self._state.parts.rounds.end()
            await self._state.parts.sli.close()
            self._state.parts.monitor.close()
            if self._state.parts.early_ticks is not None:
                self._state.parts.early_ticks.close()
            self._state.parts.executor.close()
            for part in self._state.parts.owned:
                part.close()
        return report

    # -- asked from outside -------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._state.config

    @property
    def declared(self) -> tuple[WorkloadSpec, ...]:
        """The workloads whose control groups are looked for, whether anything was found for them or not."""
        return tuple(self._state.declared.values())

    @property
    def capabilities(self) -> Capabilities:
        """What the host can do: as found at start, with resctrl as it is now, and what of it is measured now.

        The sources of indicators are among it, with how often they report.
        """
        now = self._state.parts.capabilities_now
        known = self._state.parts.capabilities if now is None else now()
        throttle = self._state.actuators.throttle
        found = Capabilities((*known.items, capability(throttle))) if throttle.levels else known
        measured = counting.with_measured(found, self._state)
        return Capabilities((*measured.items, *self._state.parts.sli.capabilities()))

    @property
    def queue(self) -> BatchQueue | None:
        """The batch queue; None: it is switched off, or jobs cannot be started on this host."""
        return self._state.parts.queue

    def contended(self) -> tuple[ContendedDevice, ...]:
        """The devices that batch is backed off from now."""
        backoff = self._state.parts.backoff
        return () if backoff is None else backoff.rows()

    @property
    def early_ticks(self) -> EarlyTicks | None:
        """The source of early ticks; None where time is virtual."""
        return self._state.parts.early_ticks

    @property
    def topology(self) -> Topology:
        """The host's processors, as of the last round."""
        return self._state.topology

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The newest samples by workload."""
        return self._state.samples

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons."""
        return self._state.parts.executor.enforceable(spec)

    def in_force(self, name: str) -> Settings:
        """What perphd has set on this workload, as last read back; KEEP where nothing (and for resctrl's)."""
        return self._state.parts.executor.in_force(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that are not as they were last wanted."""
        return self._state.parts.executor.blocked(name)

    def actuators(self) -> Actuators:
        """The bounds of what resctrl can set here, now."""
        return self._state.parts.actuators()

    def test_detector(self) -> None:
        """See that the detector keeps to its rate of false alarms; status and metrics tell, a failure is a problem."""
        config = self._state.config
        self._state.detector_test = self_test(config.policy, config.daemon.period_s)

    def status(self) -> AgentStatus:
        """The agent as a whole, now."""
        return status_of(self._state, self._modes)

    @property
    def tally(self) -> Tally:
        """The counters since the start."""
        return self._state.parts.tally

    def whatif(self, arrival: Arrival) -> WhatIf:
        """What would become of the LRAs if this work came now. Raises nothing; changes nothing."""
        return whatif(self._loop.snapshot(self._state.now_s), arrival, self._state.config.policy)

    def snapshot(self) -> Snapshot:
        """The host and its workloads as a policy would see them now. Changes nothing."""
        return self._loop.snapshot(self._state.now_s)

    def shaper(self) -> ShaperView:
        """The resource shaper: targets, who makes room, what could be lent."""
        shaping = self._state.parts.shaping
        if shaping is None:
            missing = Unavailable("no shaper here")
            return ShaperView("off", 0.0, missing, missing)
        return shaping.view()

    def memory_fits(self) -> tuple[FitView, ...]:
        """Every search for a memory limit."""
        fitting = self._state.parts.fitting
        return () if fitting is None else fitting.views()

    def start_memory_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        """Begin to search a workload's memory limit. Raises ConfigError if that is refused."""
        fitting = self._fitting()
        snapshot = self._loop.snapshot(self._state.now_s)
        view = next((each for each in snapshot.workloads if each.spec.name == name), None)
        if view is None:
            raise ConfigError(
                "request", "workload", f"no workload is named {name!r}", ", ".join(self._state.specs)
            )
        fitting.start(view, samples, step)
        self._state.tell(EventKind.SIZING, f"{name}: memory fit started", name, by)

    def apply_memory_fit(self, name: str, by: Actor | None = None) -> int:
        """Keep what a search has found in force; returns the limit. Raises ConfigError if there is nothing yet."""
        limit = self._fitting().apply(name)
        self._state.tell(EventKind.SIZING, f"{name}: memory fit, {limit >> 20} MiB applied", name, by)
        return limit

    def stop_memory_fit(self, name: str, by: Actor | None = None) -> None:
        """End a search, or take back what was applied. Raises ConfigError if there is none."""
        self._fitting().stop(name)
        self._state.tell(EventKind.SIZING, f"{name}: memory fit stopped", name, by)

    def _fitting(self) -> Fitting:
        fitting = self._state.parts.fitting
        if fitting is None:
            raise ConfigError("request", "workload", "this daemon fits no memory limits", "")
        return fitting

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Undeclared groups worth declaring, and what that would gain. Changes nothing."""
        return suggestions(self._loop.snapshot(self._state.now_s), self._state.undeclared)

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        """The latest decisions about this LRA, newest first, none made after ``at_s`` (monotonic).

        For batch, the decisions about LRAs that changed its settings.
        """
        records, spec = self._state.parts.records, self._state.specs.get(workload)
        if spec is not None and spec.kind is Kind.BATCH:
            return records.decisions_about_batch(workload, at_s, limit)
        return records.decisions(workload, at_s, limit)

    def aftermath(self, decision: Decision) -> Aftermath:
        """The writes and the outcome of a decision."""
        return self._state.parts.records.aftermath(decision)

    def set_mode(self, mode: Mode, workload: str | None = None, by: Actor | None = None) -> None:
        """Observe or enforce: for one workload, or for all (which forgets what was set for single ones).

        For a declaration it is the mode of everything that is found for it.
        After a restore everybody else goes on observing when one is to be enforced again.

        Raises:
            ConfigError: no such workload.
        """
        self._modes.set(mode, workload, by)

    async def pause(
        self, workload: str | None, for_s: float | None, reason: str, by: Actor | None = None
    ) -> tuple[Pause, RestoreReport]:
        """Change nothing more of a workload (None: of any), and give back at once what was set on it.

        The pause outlives reload, restart and upgrade. ``for_s`` None: until ``resume``.

        Raises:
            ConfigError: no such workload, or the pause cannot be kept.
        """
        names = None if workload is None else self._modes.names(workload)
        async with self._state.lock:
            pause = self._state.parts.pauses.begin(workload or "", for_s, reason, str(by or "perphd"))
            report = await self._state.parts.executor.restore(names)
            for name in names if names is not None else tuple(self._state.protections):
                self._state.protections.pop(name, None)
            self._state.planned = None
        text = f"{workload or 'all workloads'}: paused{f' ({reason})' if reason else ''}; {report}"
        self._state.tell(EventKind.PAUSE, text, workload or "", by)
        return pause, report

    def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        """End the pause of a workload (None: every pause that was set by hand). Returns those that were ended.

        Raises:
            ConfigError: no such workload, or the end cannot be kept.
        """
        if workload is not None:
            self._modes.names(workload)
        ended = self._state.parts.pauses.end(workload)
        self._state.parts.executor.forget_conflicts()
        self._state.planned = None
        for pause in ended:
            text = f"{pause.workload or 'all workloads'}: resumed"
            self._state.tell(EventKind.PAUSE, text, pause.workload, by)
        return ended

    def start_trial(self, request: Request, by: Actor | None = None) -> TrialRecord:
        """Begin a randomised trial of observe and enforce.

        Raises:
            ConfigError: these workloads cannot have one now, one runs already, or perphd is paused.
        """
        state = self._state
        specs = state.all_specs()
        left_out = tuple(spec.name for spec in specs if self._modes.own(spec) is Mode.OBSERVE)
        samples = state.samples | state.full_samples
        configured = configured_modes(state.config)
        people = Population(specs, samples, left_out, state.parts.policy.name, configured)
        record = state.parts.trials.start(request, people, state.parts.pauses.all(), by_text(by))
        state.planned = None
        text = f"trial {record.plan.trial} began: {record.plan.blocks} blocks of {record.plan.block_s:g} s"
        state.tell(EventKind.TRIAL, f"{text}, seed {record.plan.seed}", by=by)
        return record

    def stop_trial(self, by: Actor | None = None) -> TrialRecord:
        """End the running trial; the modes are again as they were without it.

        Raises:
            ConfigError: none runs.
        """
        record = self._state.parts.trials.end(End.STOPPED, "stopped by hand", by_text(by))
        if record is None:
            raise ConfigError("request", "trial", "no trial runs", "perphctl trial start begins one")
        self._state.planned = None
        self._state.tell(EventKind.TRIAL, f"trial {record.plan.trial} ended: stopped by hand", by=by)
        return record

    def trial(self) -> TrialRecord | None:
        """The trial that runs, else the last one."""
        return self._state.parts.trials.record

    async def add_workload(self, spec: WorkloadSpec, by: Actor | None = None) -> None:
        """Take a workload, already checked against the others, into the loop; replaces one of that name."""
        await self._registry.add(spec, by)

    async def remove_workload(self, name: str, by: Actor | None = None) -> None:
        """Give a workload's settings back and forget it. An LRA's protection ends at the next tick.

        A declaration takes along what was found for it.

        Raises:
            ConfigError: no such workload, or one that was found: it would be found again.
        """
        await self._registry.remove(name, by)
        if self._state.parts.trials.names_lra(name):
            self._modes.end_trial(f"{name} was taken off the list", by)

    def push_sli(self, workload: str, reading: SliReading) -> None:
        """A reading that the application itself delivers. Raises ConfigError if its SLI source is not ``push``."""
        self._state.parts.sli.push(workload, reading, self._state.time_s(self._state.now_s))
        if self._state.parts.early_ticks is not None and workload in self._state.specs:
            self._state.parts.early_ticks.pushed(workload, self._state.specs[workload].objective, reading)

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> RestoreReport:
        """Go back to observing and put every original value back. ``ignore_lock``: as ``isolation.restore`` has it."""
        async with self._state.lock:
            self._modes.end_trial("perphctl restore", by)
            self._modes.halt()
            report = await self._state.parts.executor.restore(ignore_lock=ignore_lock)
            self._state.protections.clear()
            self._state.planned = None
        self._state.tell(EventKind.RESTORE, f"{report}; all workloads: observe", by=by)
        return report

    async def reload(self, config: Config, by: Actor | None = None) -> None:
        """Take over a configuration that was read and checked. Models of workloads that stay are kept."""
        await self._registry.reload(config, by)

    def models(self) -> tuple[ModelSummary, ...]:
        """The LRAs' models, in a line each."""
        return tuple(
            self._state.parts.models.summary(spec)
            for spec in self._state.all_specs()
            if spec.kind is Kind.LRA
        )

    def model_view(self, lra: str) -> ModelView:
        """All that an LRA's model believes. Raises ConfigError if there is no such LRA."""
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

    def export_model(self, lra: str) -> str:
        """The model as the text of a file. Raises ConfigError if there is no such LRA, PerphError if it has none."""
        return self._state.parts.models.export(self._state.lra(lra), self._state.now_s)

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """Replace an LRA's model by the one in this text; returns warnings.

        Raises:
            ConfigError: no such LRA.
            ModelFileError: the text is refused; nothing has changed.
        """
        async with self._state.lock:
            spec = self._state.lra(lra)
            self._state.parts.models.follow((spec,), self._state.now_s)
            warnings = self._state.parts.models.take(spec, text, self._state.now_s, rename)
        self._state.tell(EventKind.WORKLOAD, "model imported", lra)
        return warnings

    async def reset_model(self, lra: str) -> None:
        """Discard what was learned of an LRA. Raises ConfigError (no such LRA), KernelError (files stay)."""
        async with self._state.lock:
            self._state.parts.models.reset(self._state.lra(lra), self._state.now_s)
        self._state.tell(EventKind.WORKLOAD, "model reset", lra)

    def forecasts(self) -> bytes | Unavailable:
        """What the forecast worker published last, as JSON; or why there is nothing."""
        worker = self._state.parts.forecasts
        return Unavailable(FORECASTS_OFF) if worker is None else worker.published()

    def subscribe(self) -> AsyncIterator[Event]:
        """Everything that happens from now on; ends when the agent stops."""
        return self._state.parts.records.subscribe()

    def rounds(self) -> AsyncIterator[Round]:
        """Every round of decisions from now on, whole, for a recording; ends when the agent stops."""
        assert self._state.parts.rounds is not None
        return self._state.parts.rounds.rounds()
