"""One round: sample -> learn -> decide -> enforce -> record."""

from __future__ import annotations

import asyncio
import time

from perphd.agent.counting import MeasuredWorkloads
from perphd.agent.enforcement import Enforcement
from perphd.agent.hardware_changes import HardwareChanges
from perphd.agent.indicators import Indicators
from perphd.agent.learning import START_S, ObservationMerger
from perphd.agent.models import Models
from perphd.agent.pacing import TickPace
from perphd.agent.pause_control import PauseControl
from perphd.agent.protections import Protections
from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.agent.round_consumers import RoundConsumers
from perphd.agent.round_recorder import RoundRecorder
from perphd.agent.running_config import RunningConfig
from perphd.agent.sampling import Sampling
from perphd.agent.sizing_control import SizingControl
from perphd.agent.snapshots import PolicyState, Snapshots
from perphd.agent.trial_control import TrialControl
from perphd.agent.workload_list import WorkloadList
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.domain.policy import Policy, Snapshot


class ControlLoop:
    """Runs rounds, which never overlap.

    ``lock``: held during a round, and by operations that must not overlap one.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        config: RunningConfig,
        clock: RoundClock,
        pace: TickPace,
        workloads: WorkloadList,
        registry: WorkloadRegistry,
        indicators: Indicators,
        hardware_changes: HardwareChanges,
        pauses: PauseControl,
        trials: TrialControl,
        sampling: Sampling,
        snapshots: Snapshots,
        protections: Protections,
        models: Models,
        policy: Policy,
        policy_state: PolicyState,
        sizing: SizingControl,
        enforcement: Enforcement,
        counting: MeasuredWorkloads,
        recorder: RoundRecorder,
        records: Records,
        consumers: RoundConsumers,
    ) -> None:
        self._lock, self._config, self._clock, self._pace = lock, config, clock, pace
        self._workloads, self._registry, self._indicators = workloads, registry, indicators
        self._hardware_changes, self._pauses, self._trials = hardware_changes, pauses, trials
        self._sampling, self._snapshots, self._protections = sampling, snapshots, protections
        self._models, self._policy, self._policy_state = models, policy, policy_state
        self._sizing, self._enforcement, self._counting = sizing, enforcement, counting
        self._recorder, self._records, self._consumers = recorder, records, consumers
        self._lessons = ObservationMerger(START_S)

    async def tick(self, now_s: float, period_s: float | None = None) -> None:
        """Run one round at ``now_s`` (monotonic seconds). A failure of one workload does not abort it.

        ``period_s``: the planned time since the previous round; by default the configured period.
        """
        period_s = self._config.now.daemon.period_s if period_s is None else period_s
        await self._registry.follow(now_s)
        async with self._lock:
            readings = await self._indicators.read(now_s)
            now_s = self._clock.begin_round(now_s)
            waited = time.perf_counter()
            self._hardware_changes.follow_processors(now_s)
            self._pauses.follow()
            await self._trials.follow()
            self._hardware_changes.follow_mount(now_s)
            specs = self._workloads.all_specs()
            await self._models.follow(specs, now_s, self._workloads.application)
            self._sampling.sample(now_s, specs, readings)
            await self._trials.judge(now_s)
            self._sampling.look_where_they_run(now_s, specs)
            snapshot = self._snapshots.at(now_s, period_s)
            self.learn(snapshot)
            deciding = time.perf_counter()
            with self._records.paused():
                target = self._policy.decide(snapshot)
                self._policy_state.take(target)
                step = self._sizing.look(snapshot, target)
                await self._enforcement.enforce(target, now_s, deciding)
            self._sizing.end(step)
            await self._counting.follow(now_s)
            self._recorder.record(target, now_s)
            self._models.save_when_due(specs, now_s, self._config.now.daemon.model_save_s)
            self._pace.advance(snapshot, target)
            self._consumers.step(now_s, specs)
            self._clock.end_round()
            # Time spent waiting for applications' answers does not count as the daemon's.
            self._recorder.took(time.perf_counter() - waited, now_s)

    def learn(self, snapshot: Snapshot) -> None:
        """Pass the observations to the models."""
        in_force = self._protections.allocations()
        for name, seen in self._lessons.of(snapshot, in_force, self._config.now.policy.batch_idle_cores):
            self._models.model(name).observe(seen)
