"""Passes a complete round to its consumers: job history, backoff from devices, batch queue, forecast worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perphd.agent.announcer import Announcer
from perphd.agent.forecasts import ForecastProcess, Message, set_limits
from perphd.agent.hardware import HostHardware
from perphd.agent.jobs import Jobs
from perphd.agent.measurements import Measurements
from perphd.agent.modes import Modes
from perphd.agent.records import Records
from perphd.agent.workload_list import WorkloadList
from perphd.domain.event import EventKind
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.isolation.executor import Executor

if TYPE_CHECKING:
    from perphd.agent.devices.backoff import DeviceBackoff
    from perphd.agent.devices.hints import Hints
    from perphd.agent.queue.batch_queue import BatchQueue


class RoundConsumers:
    """The consumers of measurements beside the policy. Those that are None are disabled."""

    def __init__(
        self,
        *,
        workloads: WorkloadList,
        modes: Modes,
        hardware: HostHardware,
        measurements: Measurements,
        executor: Executor,
        records: Records,
        announcer: Announcer,
        jobs: Jobs | None,
        backoff: DeviceBackoff | None,
        hints: Hints,
        queue: BatchQueue | None,
        forecasts: ForecastProcess | None,
    ) -> None:
        self._workloads, self._modes, self._hardware = workloads, modes, hardware
        self._measured, self._executor = measurements, executor
        self._records, self._announcer = records, announcer
        self._jobs, self._backoff, self._hints = jobs, backoff, hints
        self._queue, self._forecasts = queue, forecasts

    def step(self, now_s: float, specs: Sequence[WorkloadSpec]) -> None:
        """Pass on the round at ``now_s``, which sampled these workloads."""
        self._follow_jobs(now_s)
        self._back_off(specs, now_s)
        if self._queue is not None:
            self._queue.step(now_s, self._measured.samples, self._measured.account)
        if self._forecasts is not None:
            self._forecasts.step(now_s, self._message)

    def _follow_jobs(self, now_s: float) -> None:
        """Report starts and ends of batch runs to the job history."""
        if self._jobs is None:
            return
        workloads = self._workloads
        self._jobs.follow(
            # the queue records its own jobs
            [spec for spec in workloads.all_specs() if spec.name not in workloads.jobs],
            self._measured.samples,
            lambda name: workloads.declaration_of(name) or name,
            now_s,
        )

    def _back_off(self, specs: Sequence[WorkloadSpec], now_s: float) -> None:
        """Evaluate contended devices, announce changes, and update the hints for batch."""
        backoff = self._backoff
        told = [] if backoff is None else backoff.step(now_s, specs, self._measured.samples)
        contended = () if backoff is None else backoff.rows()
        for device, reason in told:
            held = [
                each.workload
                for row in contended
                if f"{row.kind} {row.device}" == device
                for each in row.restrictions
            ]
            by_name = self._workloads.specs
            seen = [name for name in held if self._modes.of(by_name[name]) is not Mode.ENFORCE]
            only = f"; {', '.join(seen)} in mode observe: nothing is written" if seen else ""
            self._announcer.tell(EventKind.HOST, f"{device}: {reason}{only}")
        takers = [spec for spec in specs if spec.takes_hints]
        enforced = {spec.name for spec in takers if self._modes.of(spec) is Mode.ENFORCE}
        problem = self._hints.write([spec.name for spec in takers], enforced, contended)
        self._records.problem("hints", problem or None, now_s)

    def _message(self) -> Message:
        """The message to the forecast worker: the workloads, the jobs that have ended, the host."""
        listed = [
            (
                spec.name,
                spec.cgroup,
                spec.min_memory_bytes,
                set_limits(self._executor.in_force(spec.name)),
                spec.reserved_memory_bytes,
                self._workloads.application(spec.name),
            )
            for spec in self._workloads.all_specs()
        ]
        ended = [] if self._jobs is None else self._jobs.take()
        return Message(listed, ended, self._hardware.topology.most)
