"""Samples all workloads and the host in one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perphd.agent.hardware import HostHardware
from perphd.agent.measurements import Measurements
from perphd.agent.protections import Protections
from perphd.agent.sli import SliBoard
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.actuators import Actuators
from perphd.isolation.executor import Executor
from perphd.monitor.host_account import HostAccounts
from perphd.monitor.hostload import HostLoad
from perphd.monitor.links import LinkLoad
from perphd.monitor.residence import Residence
from perphd.monitor.sampler import Monitor
from perphd.monitor.sli import SliReading


class Sampling:
    """Reads all counters, and keeps the results in ``Measurements``."""

    def __init__(
        self,
        *,
        monitor: Monitor,
        host_load: HostLoad,
        accounts: HostAccounts,
        links: LinkLoad,
        residence: Residence,
        sli: SliBoard,
        executor: Executor,
        protections: Protections,
        hardware: HostHardware,
        measurements: Measurements,
    ) -> None:
        self._monitor, self._host_load, self._accounts, self._links = monitor, host_load, accounts, links
        self._residence, self._sli, self._executor = residence, sli, executor
        self._protections, self._hardware, self._measured = protections, hardware, measurements

    def sample(self, now_s: float, specs: Sequence[WorkloadSpec], readings: Mapping[str, SliReading]) -> None:
        """Sample the workloads and the host. ``readings``: the applications' indicators."""
        measured = self._measured
        samples = self._monitor.sample(now_s, specs, readings, self._executor.counted)
        self._sli.worked(samples)
        measured.busy_cores = self._host_load.read(now_s)
        measured.network_pct = self._links.read(now_s)
        measured.take(map(self._protections.flagged, samples), specs)
        measured.account = self._accounts.read(now_s, self._host_load.times, specs, measured.samples)

    def look_where_they_run(self, now_s: float, specs: Sequence[WorkloadSpec]) -> None:
        """Track the L3 domains that workloads use; needed only if there are several and resctrl can set something."""
        topology = self._hardware.topology
        asked = len(topology.l3_domains) > 1 and self._hardware.actuators != Actuators()
        if not asked:
            specs = ()
        here = {spec.name: spec.cgroup for spec in specs if self._measured.is_present(spec.name)}
        lras = {spec.name for spec in specs if spec.kind is Kind.LRA}
        self._residence.follow(here, lras, topology, now_s)
