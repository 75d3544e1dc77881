"""Lines of ``perphctl doctor`` about bands: gathers this host's facts for ``perphd.qos.band_report``."""

from __future__ import annotations

from perphd.agent.bands import Bands
from perphd.agent.devices.latency import KNOB, DiskLatency
from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.hardware import HostHardware
from perphd.agent.modes import Modes
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.snapshots import PolicyState
from perphd.agent.workload_list import WorkloadList
from perphd.domain.allocation import UNTOUCHED
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.isolation.executor import Executor


class BesideGold:
    """Says what the CPUs reserved for gold mean for an LRA."""

    def __init__(
        self, modes: Modes, bands: Bands, policy_state: PolicyState, enforceable: EnforceableKnobs
    ) -> None:
        self._modes, self._bands = modes, bands
        self._policy_state, self._enforceable = policy_state, enforceable

    def text(self, spec: WorkloadSpec) -> str:
        """The consequence for this LRA in words; empty if there is none."""
        division, target = self._bands.division, self._policy_state.target
        known = self._enforceable.known(spec.name)
        if division is None or known is None or self._modes.of(spec) is not Mode.ENFORCE:
            return ""
        from perphd.qos import division as gold

        wanted = UNTOUCHED if target is None else target.settings.get(spec.name, UNTOUCHED)
        return gold.beside_gold(spec, wanted, division, known.knobs)


class BandLines:
    """Lines for workloads that declare their band, for copper and the host's own daemons, and for latency targets."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        modes: Modes,
        hardware: HostHardware,
        executor: Executor,
        enforceable: EnforceableKnobs,
        bands: Bands,
        beside_gold: BesideGold,
        disk_latency: DiskLatency,
    ) -> None:
        self._config, self._clock, self._workloads, self._modes = config, clock, workloads, modes
        self._hardware, self._executor, self._enforceable = hardware, executor, enforceable
        self._bands, self._beside_gold, self._disk_latency = bands, beside_gold, disk_latency

    def lines(self) -> tuple[str, ...]:
        """All lines."""
        return (*self._of_bands(), *self._of_latencies())

    def _of_latencies(self) -> tuple[str, ...]:
        """One line for each workload with a latency target on disks."""
        specs = self._workloads.specs
        asking = [spec for spec in specs.values() if spec.io_latency_ms]
        if not asking:
            return ()
        from perphd.qos.band_report import latency_line

        disks, lines = self._disk_latency.disks(self._clock.now_s), []
        for spec in asking:
            missing = self._enforceable.missing(spec.name)
            reason = next((each.reason for each in missing if each.knob == KNOB), "")
            others = [each for each in specs.values() if each.name != spec.name]
            enforced = self._modes.of(spec) is Mode.ENFORCE
            lines.append(latency_line(spec, enforced, disks, reason, others))
        return tuple(lines)

    def _of_bands(self) -> tuple[str, ...]:
        jobs = self._workloads.jobs
        declared = [
            spec for spec in self._workloads.specs.values() if spec.band is not None and spec.name not in jobs
        ]
        if not declared:
            return ()
        from perphd.qos.band_report import BandMember, HostControls, report  # loaded only if bands are used

        members = [
            BandMember(
                spec,
                self._modes.of(spec) is Mode.ENFORCE,
                self._enforceable.knobs(spec.name),
                self._executor.in_force(spec.name),
                self._beside_gold.text(spec),
            )
            for spec in declared
        ]
        network = self._config.now.network
        topology, actuators = self._hardware.topology, self._hardware.actuators
        controls = HostControls(
            llc_ways=actuators.llc_ways,
            copper_ways=self._bands.copper_ways,
            throttles=bool(actuators.mba_levels_pct),
            egress=network.names if network.batch_egress_max_bytes else (),
            smt=len(topology.usable) > len(topology.usable_cores),
        )
        return report(members, self._bands.division, controls)
