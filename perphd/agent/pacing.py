"""Determines the time to the next tick, and the workloads that may request an earlier one."""

from __future__ import annotations

from perphd.admission.detector.attention import Attention, advance, next_in_s
from perphd.agent.measurements import Measurements
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.triggers import EarlyTicks
from perphd.agent.workload_list import WorkloadList
from perphd.domain.decision import TROUBLED
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.sample import Quality
from perphd.domain.workload import Kind


class TickPace:
    """Decides after each round when the next one is due."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        measurements: Measurements,
        early_ticks: EarlyTicks | None,
    ) -> None:
        self._config, self._clock, self._workloads = config, clock, workloads
        self._measured, self._early_ticks = measurements, early_ticks
        self._attention = Attention()

    @property
    def pace_s(self) -> float:
        """Planned seconds between the last tick and the next one."""
        daemon = self._config.now.daemon
        return next_in_s(self._attention, self._clock.now_s, daemon.period_s, daemon.attentive_period_s)

    @property
    def reason(self) -> str:
        """The reason for faster ticks, in words; empty at the usual pace."""
        return self._attention.why if self.pace_s < self._config.now.daemon.period_s else ""

    def advance(self, snapshot: Snapshot, target: TargetState) -> None:
        """Determine the time to the next round, and the workloads that may request an earlier one."""
        daemon = self._config.now.daemon
        self._attention = advance(
            self._attention,
            snapshot,
            target,
            daemon.attentive_period_s,
            daemon.attentive_for_s,
            started=self._early_ticks.started if self._early_ticks is not None else (),
        )
        self._listen(target)  # There is no await in between, so later requests count for the next round.

    def _listen(self, target: TargetState) -> None:
        """Subscribe present LRAs to early ticks, and report whether the last early tick found a problem."""
        early_ticks, samples = self._early_ticks, self._measured.samples
        if early_ticks is None:
            return
        specs = self._workloads.specs.values()
        lras = [spec for spec in specs if spec.kind is Kind.LRA]
        early_ticks.follow({s.name: s.cgroup for s in lras if not samples[s.name].has(Quality.GONE)})
        batch = {spec.name: spec.cgroup for spec in specs if spec.kind is Kind.BATCH}
        gone = {name for name in batch if samples[name].has(Quality.GONE)}
        fresh = {name for name in batch if samples[name].has(Quality.FIRST, Quality.RESTARTED)}
        early_ticks.await_batch(batch, fresh, gone)
        early_ticks.answered(
            early_ticks.take(), {d.workload for d in target.decisions if d.verdict.health in TROUBLED}
        )
