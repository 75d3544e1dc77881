"""Answers about the host: capabilities, bands, contended devices, and what is in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from perphd.agent.band_lines import BandLines
from perphd.agent.counting import MeasuredWorkloads
from perphd.agent.hardware import HostHardware
from perphd.agent.oom_order import OomOrder
from perphd.agent.sli import SliBoard
from perphd.agent.workload_list import WorkloadList
from perphd.domain.allocation import Settings
from perphd.domain.capability import Capabilities
from perphd.domain.contention import ContendedDevice
from perphd.domain.plan import NotEnforceable
from perphd.domain.topology import Topology
from perphd.domain.workload import WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.host.throttle import capability
from perphd.isolation.executor import Executor

if TYPE_CHECKING:
    from perphd.agent.devices.backoff import DeviceBackoff


class HostReport:
    """The host as ``perphctl`` shows it. ``capabilities``: the report with the present state of resctrl's mount."""

    def __init__(
        self,
        *,
        capabilities: Callable[[], Capabilities],
        workloads: WorkloadList,
        hardware: HostHardware,
        counting: MeasuredWorkloads,
        executor: Executor,
        sli: SliBoard,
        band_lines: BandLines,
        oom_order: OomOrder,
        backoff: DeviceBackoff | None,
    ) -> None:
        self._capabilities, self._workloads, self._hardware = capabilities, workloads, hardware
        self._counting, self._executor, self._sli = counting, executor, sli
        self._band_lines, self._oom_order, self._backoff = band_lines, oom_order, backoff

    @property
    def topology(self) -> Topology:
        """The host's processors at the last round."""
        return self._hardware.topology

    def capabilities(self) -> Capabilities:
        """See ``Agent.capabilities``."""
        known = self._capabilities()
        throttle = self._hardware.actuators.throttle
        found = Capabilities((*known.items, capability(throttle))) if throttle.levels else known
        measured = self._counting.completed(found)
        return Capabilities((*measured.items, *self._sli.capabilities()))

    async def oom_violations(self) -> tuple[str, ...]:
        """See ``Agent.oom_order``."""
        return await asyncio.to_thread(self._oom_order.broken, self._workloads.all_specs())

    def bands(self) -> tuple[str, ...]:
        """See ``Agent.bands``."""
        return self._band_lines.lines()

    def contended(self) -> tuple[ContendedDevice, ...]:
        """See ``Agent.contended``."""
        return () if self._backoff is None else self._backoff.rows()

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """See ``Agent.enforceable``."""
        return self._executor.enforceable(spec)

    def in_force(self, name: str) -> Settings:
        """See ``Agent.in_force``."""
        return self._executor.in_force(name)

    def blocked(self, name: str) -> tuple[str, ...]:
        """See ``Agent.blocked``."""
        return self._executor.blocked(name)

    def actuators(self) -> Actuators:
        """See ``Agent.actuators``."""
        return self._hardware.bounds_now()
