"""Combines everything that a policy may know into one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Set

from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.hardware import HostHardware
from perphd.agent.measurements import Measurements
from perphd.agent.models import Models
from perphd.agent.modes import Modes
from perphd.agent.protections import Protections
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.workload_list import WorkloadList
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.quick import maker
from perphd.domain.sample import Quality
from perphd.domain.window import Window
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.isolation.executor import Executor
from perphd.monitor.residence import Residence

_NO_KNOBS: frozenset[str] = frozenset()

_make_view = maker(WorkloadView)


class PolicyState:
    """The policy's memory, and its last target state for the present CPUs."""

    def __init__(self) -> None:
        self.memory: object = None
        self.target: TargetState | None = None

    def take(self, target: TargetState) -> None:
        """Keep a new decision."""
        self.memory, self.target = target.memory, target

    def discard(self) -> None:
        """Discard earlier decisions, because they refer to other CPUs."""
        self.memory = self.target = None


class Snapshots:
    """Makes snapshots of the last round."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        modes: Modes,
        hardware: HostHardware,
        measurements: Measurements,
        policy_state: PolicyState,
        protections: Protections,
        enforceable: EnforceableKnobs,
        executor: Executor,
        models: Models,
        window: Window,
        residence: Residence,
    ) -> None:
        self._config, self._clock, self._workloads, self._modes = config, clock, workloads, modes
        self._hardware, self._measured, self._policy_state = hardware, measurements, policy_state
        self._protections, self._enforceable, self._executor = protections, enforceable, executor
        self._models, self._window, self._residence = models, window, residence

    def now(self) -> Snapshot:
        """The host and its workloads at the time of the last round."""
        return self.at(self._clock.now_s)

    def at(self, now_s: float, period_s: float | None = None) -> Snapshot:
        """Everything that a policy may know at ``now_s``.

        ``period_s``: the planned time since the previous round; by default the configured period.
        """
        actuators, measured = self._hardware.actuators, self._measured
        yielded = self._protections.yielded()
        views = tuple([self._view(spec, now_s, yielded) for spec in self._workloads.all_specs()])
        return Snapshot(
            tick=self._clock.rounds,
            at_s=now_s,
            period_s=self._config.now.daemon.period_s if period_s is None else period_s,
            host=HostView(
                self._hardware.topology,
                busy_cores=measured.busy_cores,
                llc_ways=actuators.llc_ways,
                min_cbm_bits=actuators.min_cbm_bits,
                llc_classes=actuators.llc_classes,
                mba_levels_pct=actuators.mba_levels_pct,
                llc_shareable=actuators.llc_shareable,
                mba_source=actuators.throttle.source,
                mba_curves=actuators.throttle.curves,
                network_pct=measured.network_pct,
                account=measured.account,
                window_open=self._window.is_open(),
            ),
            workloads=views,
            memory=self._policy_state.memory,
        )

    def _view(self, spec: WorkloadSpec, now_s: float, yielded: Mapping[str, Set[str]]) -> WorkloadView:
        sample = self._measured.samples.get(spec.name)
        present = sample is not None and not sample.has(Quality.GONE)
        is_lra = spec.kind is Kind.LRA
        protection = self._protections.of(spec.name)
        home = self._residence.home(spec.name)
        knobs = self._enforceable.look(spec, present, now_s)
        paid = spec.kind is Kind.BATCH and not spec.gives_way  # the policy must not change its settings
        return _make_view(
            spec=spec,
            sample=sample if present else None,
            model=self._models.model(spec.name) if is_lra else None,
            protection=protection.allocation if protection is not None else None,
            protected_since_s=protection.since_s if protection is not None else 0.0,
            enforceable=_NO_KNOBS if paid else knobs - yielded[spec.name] if spec.name in yielded else knobs,
            enforced=not paid and self._modes.of(spec) is Mode.ENFORCE,
            allowed=home.allowed,
            seen_domains=home.domains,
            waiting=self._executor.waiting(spec.name),
        )
