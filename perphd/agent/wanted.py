"""Computes the wanted settings of every workload: the policy's, completed by sizing, bands, backoff and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perphd.agent.bands import Bands, asks_for_a_share
from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.fitting import Fitting
from perphd.agent.hardware import HostHardware
from perphd.agent.modes import Modes
from perphd.agent.round_clock import RoundClock
from perphd.agent.shaping import Shaping
from perphd.agent.workload_list import WorkloadList
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.policy import TargetState
from perphd.domain.workload import Kind, Mode, WorkloadSpec

if TYPE_CHECKING:
    from perphd.agent.devices.backoff import DeviceBackoff
    from perphd.agent.devices.latency import DiskLatency
    from perphd.agent.queue.batch_queue import BatchQueue

_OF_A_NEW_JOB = frozenset({"cpus", "llc_masks"})


class WantedSettings:
    """Completes a target state. ``backoff``, ``queue``: None if disabled."""

    def __init__(
        self,
        *,
        clock: RoundClock,
        workloads: WorkloadList,
        modes: Modes,
        hardware: HostHardware,
        enforceable: EnforceableKnobs,
        bands: Bands,
        shaping: Shaping,
        fitting: Fitting,
        disk_latency: DiskLatency,
        backoff: DeviceBackoff | None,
        queue: BatchQueue | None,
    ) -> None:
        self._clock, self._workloads, self._modes, self._hardware = clock, workloads, modes, hardware
        self._enforceable, self._bands = enforceable, bands
        self._shaping, self._fitting, self._disk_latency = shaping, fitting, disk_latency
        self._backoff, self._queue = backoff, queue

    def by_workload(self, target: TargetState) -> dict[str, Settings]:
        """Settings by workload; workloads that are only observed keep their original ones."""
        specs = self._workloads.specs
        enforced = {name for name, spec in specs.items() if self._modes.of(spec) is Mode.ENFORCE}
        self._divide(enforced)
        return {
            name: self._completed(spec, target.settings.get(name, UNTOUCHED))
            if name in enforced
            else UNTOUCHED
            for name, spec in specs.items()
        }

    def _divide(self, enforced: set[str]) -> None:
        """Divide CPUs and cache among the bands of the present workloads."""
        specs = self._workloads.specs
        if self._bands.division is None and not any(map(asks_for_a_share, specs.values())):
            return
        there = [
            spec for name, spec in specs.items() if name in enforced and self._enforceable.is_present(name)
        ]
        hardware = self._hardware
        self._bands.divide(hardware.topology, hardware.actuators, there, self._enforceable.by_workload())

    def _completed(self, spec: WorkloadSpec, wanted: Settings) -> Settings:
        name, knobs = spec.name, self._enforceable.knobs(spec.name)
        if spec.kind is Kind.BATCH and not spec.gives_way:
            wanted = UNTOUCHED  # silver is never restricted for another workload
        wanted = self._shaping.over(name, wanted, knobs)
        wanted = self._fitting.over(name, wanted)
        wanted = self._banded(spec, wanted, knobs)
        wanted = self._disk_latency.over(spec, wanted, self._clock.now_s)
        if self._backoff is not None:
            wanted = self._backoff.over(name, wanted)
        if self._queue is not None and name in self._workloads.jobs:
            wanted = self._queue.over(name, wanted)
        return wanted

    def _banded(self, spec: WorkloadSpec, wanted: Settings, knobs: frozenset[str]) -> Settings:
        """``wanted``, adapted to the bands of all workloads."""
        jobs = self._workloads.jobs
        if spec.band is not None and spec.name not in jobs:  # a job's unit has the settings of its band
            from perphd.qos.band_settings import (
                with_band,
            )  # a daemon without bands does not load their module

            guaranteed = self._bands.guarantees(spec.name)
            memory_bytes = self._hardware.topology.memory_bytes
            wanted = with_band(spec, wanted, knobs, memory_bytes, guaranteed=guaranteed)
        if not knobs and spec.name in jobs:
            knobs = _OF_A_NEW_JOB  # the next round checks which knobs the job's group really has
        return self._bands.over(spec, wanted, knobs)
