"""The agent: one tick of sample -> learn -> decide -> enforce -> record, and all requests to it.

Time comes in with every tick (simulated hosts run in virtual time). A real host may also pass a clock, because reading
SLIs takes time.

The agent keeps no state of its own. ``control_loop`` runs the ticks, ``workload_registry`` changes the list of
workloads, ``modes`` knows which workloads are enforced, ``protections`` knows what protects each LRA, and ``status``
summarises. ``assembly`` connects them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from perphd.admission.declaring import suggestions
from perphd.admission.whatif import whatif
from perphd.agent.control_loop import ControlLoop
from perphd.agent.detector_check import DetectorCheck
from perphd.agent.host_report import HostReport
from perphd.agent.indicators import Indicators
from perphd.agent.measurements import Measurements
from perphd.agent.model_control import ModelControl
from perphd.agent.modes import Modes
from perphd.agent.pacing import TickPace
from perphd.agent.pause_control import PauseControl
from perphd.agent.records import Records
from perphd.agent.round_recorder import RoundRecorder
from perphd.agent.rounds import Round, RoundTap
from perphd.agent.running_config import RunningConfig
from perphd.agent.selfcost import CostMeter
from perphd.agent.shutdown import Shutdown
from perphd.agent.sizing_control import SizingControl
from perphd.agent.snapshots import Snapshots
from perphd.agent.status import StatusReport
from perphd.agent.tally import Tally
from perphd.agent.trial_control import TrialControl
from perphd.agent.triggers import EarlyTicks
from perphd.agent.workload_list import WorkloadList
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.config.file import Config
from perphd.domain.allocation import Settings
from perphd.domain.belief import ModelOrigin, ModelSummary, ModelView
from perphd.domain.capability import Capabilities
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Actor, Pause
from perphd.domain.decision import Consequences, Decision
from perphd.domain.event import Event
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
from perphd.isolation.restore_report import RestoreReport
from perphd.monitor.sli import SliReading
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShaperView
from perphd.trial.design import Request
from perphd.trial.record import TrialRecord

if TYPE_CHECKING:
    from perphd.agent.queue.batch_queue import BatchQueue


class Agent:
    """The agent; see the module. Not thread-safe: everything runs on one event loop, and ticks never overlap."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        loop: ControlLoop,
        pace: TickPace,
        early_ticks: EarlyTicks | None,
        workloads: WorkloadList,
        registry: WorkloadRegistry,
        indicators: Indicators,
        measurements: Measurements,
        snapshots: Snapshots,
        modes: Modes,
        pauses: PauseControl,
        trials: TrialControl,
        models: ModelControl,
        sizing: SizingControl,
        queue: BatchQueue | None,
        host: HostReport,
        status: StatusReport,
        detector: DetectorCheck,
        recorder: RoundRecorder,
        records: Records,
        tally: Tally,
        cost: CostMeter,
        rounds: RoundTap,
        shutdown: Shutdown,
    ) -> None:
        self._config, self._loop, self._pace, self._early_ticks = config, loop, pace, early_ticks
        self._workloads, self._registry, self._indicators = workloads, registry, indicators
        self._measured, self._snapshots = measurements, snapshots
        self._modes, self._pauses, self._trials = modes, pauses, trials
        self._models, self._sizing, self._queue = models, sizing, queue
        self._host, self._status, self._detector = host, status, detector
        self._recorder, self._records, self._tally, self._cost = recorder, records, tally, cost
        self._rounds, self._shutdown = rounds, shutdown

    async def tick(self, now_s: float, period_s: float | None = None) -> None:
        """Run one tick at ``now_s`` (monotonic seconds). A failure of one workload does not abort it.

        ``period_s``: the planned time since the previous tick; by default the configured period.
        """
        await self._loop.tick(now_s, period_s)

    @property
    def pace_s(self) -> float:
        """Planned seconds between the last tick and the next one."""
        return self._pace.pace_s

    def missed(self, ticks: int) -> None:
        """Count ticks that the loop skipped because it was late."""
        self._cost.missed_ticks += ticks

    async def stop(self, restore: bool) -> RestoreReport | None:
        """Stop the agent: restore original values if requested, and close every descriptor.

        The agent cannot be used afterwards. Returns the restore report; None without a restore.
        """
        return await self._shutdown.stop(restore)

    # -- asked from outside -------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config.now

    @property
    def declared(self) -> tuple[WorkloadSpec, ...]:
        """Workloads declared by match, whether or not a control group was found for them."""
        return tuple(self._workloads.declared.values())

    @property
    def capabilities(self) -> Capabilities:
        """The host's capabilities: as probed at start, with the present state of resctrl and of measurements.

        They include the sources of indicators and their resolutions.
        """
        return self._host.capabilities()

    @property
    def queue(self) -> BatchQueue | None:
        """The batch queue; None if it is disabled or jobs cannot be started on this host."""
        return self._queue

    async def oom_order(self) -> tuple[str, ...]:
        """Workloads that the kernel may kill for memory before workloads of a lower band, and the remedy.

        This may read hundreds of files for each workload, in a thread.
        """
        return await self._host.oom_violations()

    def bands(self) -> tuple[str, ...]:
        """The mechanisms of each declared band on this host, and the substitutes for missing ones."""
        return self._host.bands()

    def contended(self) -> tuple[ContendedDevice, ...]:
        """The devices from which batch is being backed off."""
        return self._host.contended()

    @property
    def early_ticks(self) -> EarlyTicks | None:
        """The source of early ticks; None in virtual time."""
        return self._early_ticks

    @property
    def topology(self) -> Topology:
        """The host's processors at the last round."""
        return self._host.topology

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The newest samples by workload."""
        return self._measured.samples

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons."""
        return self._host.enforceable(spec)

    def in_force(self, name: str) -> Settings:
        """The settings that perphd has applied to this workload, as last read back.

        All other knobs, and those of resctrl, are KEEP.
        """
        return self._host.in_force(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload whose value in force is not the one that the last plan wanted;
        see ``Executor.blocked``.
        """
        return self._host.blocked(name)

    def actuators(self) -> Actuators:
        """The present bounds of resctrl's controls."""
        return self._host.actuators()

    def test_detector(self) -> None:
        """Check the detector's false-alarm rate. Status and metrics show the result; a failure is reported as
        a problem.
        """
        self._detector.run()

    def status(self) -> AgentStatus:
        """The present state of the agent."""
        return self._status.now()

    @property
    def tally(self) -> Tally:
        """The counters since the start."""
        return self._tally

    def whatif(self, arrival: Arrival) -> WhatIf:
        """Predicted effect on the LRAs if this work arrived now. Never raises, and changes nothing."""
        return whatif(self._snapshots.now(), arrival, self._config.now.policy)

    def snapshot(self) -> Snapshot:
        """The host and its workloads as a policy would see them now. Changes nothing."""
        return self._snapshots.now()

    def shaper(self) -> ShaperView:
        """The resource shaper: targets, workloads that make room, and reclaimable memory."""
        return self._sizing.shaper()

    def memory_fits(self) -> tuple[FitView, ...]:
        """All searches for a memory limit."""
        return self._sizing.memory_fits()

    def start_memory_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        """Start a search for a workload's memory limit. Raises ConfigError if the search is refused."""
        self._sizing.start_fit(name, samples, step, by)

    def apply_memory_fit(self, name: str, by: Actor | None = None) -> int:
        """Keep a search's result in force; returns the limit. Raises ConfigError if there is no result yet."""
        return self._sizing.apply_fit(name, by)

    def stop_memory_fit(self, name: str, by: Actor | None = None) -> None:
        """End a search, or remove its applied limit. Raises ConfigError if there is none."""
        self._sizing.stop_fit(name, by)

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Undeclared groups that the operator should declare, and the expected gain. Changes nothing."""
        return suggestions(self._snapshots.now(), self._recorder.undeclared)

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        """The latest decisions about this LRA, newest first, made at or before ``at_s`` (monotonic).

        For batch: decisions about LRAs that changed its settings.
        """
        spec = self._workloads.specs.get(workload)
        if spec is not None and spec.kind is Kind.BATCH:
            return self._records.decisions_about_batch(workload, at_s, limit)
        return self._records.decisions(workload, at_s, limit)

    def consequences(self, decision: Decision) -> Consequences:
        """The writes that followed a decision, and its outcome."""
        return self._records.consequences(decision)

    def set_mode(self, mode: Mode, workload: str | None = None, by: Actor | None = None) -> None:
        """Set observe or enforce for one workload, or for all (which clears the modes of individual workloads).

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
        return await self._pauses.pause(workload, for_s, reason, by)

    async def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        """End the pause of a workload (None: every manual pause). Returns the ended pauses.

        Raises:
            ConfigError: no such workload, or the change cannot be stored.
        """
        return await self._pauses.resume(workload, by)

    async def start_trial(self, request: Request, by: Actor | None = None) -> TrialRecord:
        """Start a randomised trial of observe and enforce.

        Raises:
            ConfigError: these workloads cannot take part now, a trial is running, or perphd is paused.
        """
        return await self._trials.start(request, by)

    def stop_trial(self, by: Actor | None = None) -> TrialRecord:
        """End the running trial and return to the modes before it.

        Raises:
            ConfigError: no trial is running.
        """
        return self._trials.stop(by)

    def trial(self) -> TrialRecord | None:
        """The running trial, else the last one."""
        return self._trials.record

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
        self._trials.workload_removed(name, by)

    def push_sli(self, workload: str, reading: SliReading) -> None:
        """Accept a reading that the application delivers. Raises ConfigError if its SLI source is not ``push``."""
        self._indicators.push(workload, reading)

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> RestoreReport:
        """Return to observe mode and restore every original value. ``ignore_lock``: see ``isolation.restore``."""
        return await self._pauses.restore(by, ignore_lock)

    async def reload(self, config: Config, by: Actor | None = None) -> None:
        """Apply a configuration that was read and checked. Models of workloads that stay are kept."""
        await self._registry.reload(config, by)

    def models(self) -> tuple[ModelSummary, ...]:
        """Summaries of the LRAs' models."""
        return self._models.summaries()

    def model_view(self, lra: str) -> ModelView:
        """The full state of an LRA's model. Raises ConfigError if there is no such LRA."""
        return self._models.view(lra)

    def model_origin(self, workload: str) -> ModelOrigin:
        """The origin of a workload's model and of its forecasts. Raises ConfigError if there is no such workload."""
        return self._models.origin(workload)

    def export_model(self, lra: str) -> str:
        """The model as the text of a file.

        Raises ConfigError if there is no such LRA, PerphError if it has no model.
        """
        return self._models.export(lra)

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """Replace an LRA's model by the model in ``text``. Returns warnings for the operator.

        Raises:
            ConfigError: no such LRA.
            ModelFileError: the text is refused; nothing has changed.
        """
        return await self._models.take(lra, text, rename)

    async def reset_model(self, lra: str) -> None:
        """Discard an LRA's model. Raises ConfigError (no such LRA) or KernelError (its files cannot be moved)."""
        await self._models.reset(lra)

    def forecasts(self) -> bytes | Unavailable:
        """The forecast worker's latest publication, as JSON; or the reason why there is none."""
        return self._models.forecasts()

    def subscribe(self) -> AsyncIterator[Event]:
        """All events from now on; ends when the agent stops."""
        return self._records.subscribe()

    def rounds(self) -> AsyncIterator[Round]:
        """Every complete decision round from now on, for a recording; ends when the agent stops."""
        return self._rounds.rounds()
