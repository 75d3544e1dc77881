"""Summarises the agent's state for display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perphd import __version__
from perphd.admission import calibration
from perphd.admission.settings import settings_for
from perphd.agent.band_lines import BesideGold
from perphd.agent.counting import MeasuredWorkloads
from perphd.agent.detector_check import DetectorCheck
from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.forecasts import ForecastProcess
from perphd.agent.hardware import HostHardware
from perphd.agent.measurements import Measurements
from perphd.agent.modes import Modes
from perphd.agent.pacing import TickPace
from perphd.agent.pauses import Pauses
from perphd.agent.protections import Protections
from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.selfcost import CostMeter
from perphd.agent.sli import SliBoard
from perphd.agent.snapshots import PolicyState
from perphd.agent.trials import Trials
from perphd.agent.triggers import EarlyTicks
from perphd.agent.workload_list import WorkloadList
from perphd.domain.allocation import Settings
from perphd.domain.condition import batch_condition, lra_condition
from perphd.domain.decision import Decision
from perphd.domain.plan import NotEnforceable
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.window import Window
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.isolation.executor import Executor

if TYPE_CHECKING:
    from perphd.agent.queue.batch_queue import BatchQueue

SHOWN_CHANGES = 5
"""Number of latest changes in the status."""
_BATCH = Unavailable("batch is not judged")


class WorkloadRows:
    """The status of individual workloads."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        clock: RoundClock,
        modes: Modes,
        measurements: Measurements,
        policy_state: PolicyState,
        protections: Protections,
        enforceable: EnforceableKnobs,
        executor: Executor,
        records: Records,
        sli: SliBoard,
        beside_gold: BesideGold,
    ) -> None:
        self._config, self._clock, self._modes = config, clock, modes
        self._measured, self._policy_state, self._protections = measurements, policy_state, protections
        self._enforceable, self._executor, self._records, self._sli = enforceable, executor, records, sli
        self._beside_gold = beside_gold

    def row(self, spec: WorkloadSpec) -> WorkloadStatus:
        """The present state of one workload, or of a declaration without one."""
        sample = self._measured.samples.get(spec.name)
        present = sample is not None and not sample.has(Quality.GONE)
        protection = self._protections.of(spec.name)
        executor, now_s = self._executor, self._clock.now_s
        decision, in_force = self._records.last_decision(spec.name), executor.in_force(spec.name)
        done = self._measured.progress(spec.name)
        full_sample = self._measured.full_samples.get(spec.name)
        missing = self._enforceable.missing(spec.name)
        return WorkloadStatus(
            spec=spec,
            present=present,
            mode=self._modes.of(spec),
            sample=sample,
            decision=decision,
            outcome=self._records.last_outcome(spec.name),
            protection=protection.allocation if protection is not None else None,
            in_force=in_force,
            not_enforceable=missing,
            limited=(
                *executor.not_enforceable(spec.name),
                *executor.limited(spec.name),
                *self._ceiling_missing(spec, missing),
                *self._left_to_gold(spec),
            ),
            expected_false_alarms_per_day=self._false_alarms(spec),
            pause=self._modes.pause_of(spec),
            full_sample=full_sample,
            condition=_condition(spec, sample, full_sample, decision, in_force),
            starved_s=done.starved_s(now_s),
            recent_cores=done.cores(now_s) if spec.kind is Kind.BATCH else NOT_MEASURED,
            sli_resolution=self._sli.resolution(spec.name),
            sli_problem=self._sli.silence(spec.name, now_s),
            would=self._records.would(spec.name),
            problem=""
            if present
            else f"waiting for {f'cgroup {spec.cgroup}' if spec.cgroup else spec.match}",
        )

    def _false_alarms(self, spec: WorkloadSpec) -> Reading:
        if spec.kind is not Kind.LRA:
            return _BATCH
        config = self._config.now
        settings = settings_for(config.policy, spec)
        return calibration.expected(self._policy_state.memory, spec.name, settings, config.daemon.period_s)

    def _left_to_gold(self, spec: WorkloadSpec) -> tuple[NotEnforceable, ...]:
        text = self._beside_gold.text(spec)
        return (NotEnforceable(spec.name, "cpus", text),) if text else ()

    def _ceiling_missing(
        self, spec: WorkloadSpec, missing: tuple[NotEnforceable, ...]
    ) -> tuple[NotEnforceable, ...]:
        """Reasons why the configured egress ceiling cannot be set on batch. The policy does not request settings
        that cannot be set, so the executor does not report them.
        """
        network = self._config.now.network
        asked = network.names and network.batch_egress_max_bytes and self._modes.of(spec) is Mode.ENFORCE
        if not asked or not spec.gives_way:
            return ()
        return tuple(left for left in missing if left.knob == "egress_max")


class StatusReport:
    """The complete present state."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        clock: RoundClock,
        pace: TickPace,
        policy_name: str,
        workloads: WorkloadList,
        rows: WorkloadRows,
        modes: Modes,
        hardware: HostHardware,
        measurements: Measurements,
        counting: MeasuredWorkloads,
        executor: Executor,
        records: Records,
        cost: CostMeter,
        detector: DetectorCheck,
        window: Window,
        pauses: Pauses,
        trials: Trials,
        early_ticks: EarlyTicks | None,
        forecasts: ForecastProcess | None,
        queue: BatchQueue | None,
    ) -> None:
        self._config, self._clock, self._pace, self._policy_name = config, clock, pace, policy_name
        self._workloads, self._rows, self._modes, self._hardware = workloads, rows, modes, hardware
        self._measured, self._counting, self._executor = measurements, counting, executor
        self._records, self._cost, self._detector = records, cost, detector
        self._window, self._pauses, self._trials = window, pauses, trials
        self._early_ticks, self._forecasts, self._queue = early_ticks, forecasts, queue

    def now(self) -> AgentStatus:
        """The status after the last round."""
        config, records = self._config.now, self._records
        actuators = self._hardware.actuators
        return AgentStatus(
            version=__version__,
            mode=self._modes.general,
            policy=self._policy_name,
            period_s=config.daemon.period_s,
            pace_s=self._pace.pace_s,
            attentive=self._pace.reason,
            tick=self._clock.rounds,
            extra_ticks=self._early_ticks.extra_ticks if self._early_ticks is not None else 0,
            uptime_s=self._clock.uptime_s,
            workloads=(
                *map(self._rows.row, self._workloads.all_specs()),
                *map(self._rows.row, self._workloads.not_found()),
            ),
            journal_entries=self._executor.journal_entries,
            cost=self._cost.cost(),
            problems=(*config.warnings, *records.problems, *self._detector.problems()),
            notes=self._counting.notes(),
            detector_test=self._detector.result,
            changes=records.changes(SHOWN_CHANGES),
            window="" if self._window.is_open() else config.window.allow,
            configured_mode=config.daemon.mode,
            pauses=self._pauses.all(),
            host=self._measured.account,
            forecast=None if self._forecasts is None else self._forecasts.summary(),
            trial=self._trials.status(),
            llc_ways=actuators.llc_ways,
            llc_shareable=actuators.llc_shareable,
            queue=None if self._queue is None else self._queue.summary(),
        )


def _condition(
    spec: WorkloadSpec,
    sample: Sample | None,
    full_sample: Sample | None,
    decision: Decision | None,
    in_force: Settings,
) -> str:
    if spec.kind is Kind.BATCH:
        return batch_condition(sample, in_force)
    return lra_condition(full_sample, decision, spec.objective.latency_percentile) or ""
