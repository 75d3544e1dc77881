"""Lines of ``perphctl doctor`` about bands: gathers this host's facts for ``perphd.qos.band_report``."""

from __future__ import annotations

from perphd.agent.devices.latency import KNOB
from perphd.agent.modes import Modes
from perphd.agent.state import State
from perphd.domain.allocation import UNTOUCHED
from perphd.domain.workload import Mode, WorkloadSpec


def band_lines(state: State, modes: Modes) -> tuple[str, ...]:
    """Lines for workloads that declare their band, for copper and the host's own daemons, and for latency targets."""
    return (*_bands(state, modes), *_latencies(state, modes))


def beside_gold(state: State, modes: Modes, spec: WorkloadSpec) -> str:
    """The consequence for an LRA of the CPUs that gold has; empty if there is none."""
    division, known, target = state.bands.division, state.enforceable.get(spec.name), state.target
    if division is None or known is None or modes.of(spec) is not Mode.ENFORCE:
        return ""
    from perphd.qos import division as gold

    wanted = UNTOUCHED if target is None else target.settings.get(spec.name, UNTOUCHED)
    return gold.beside_gold(spec, wanted, division, known.knobs)


def _latencies(state: State, modes: Modes) -> tuple[str, ...]:
    """One line for each workload with a latency target on disks."""
    latency = state.parts.disk_latency
    asking = [spec for spec in state.specs.values() if spec.io_latency_ms]
    if latency is None or not asking:
        return ()
    from perphd.qos.band_report import latency_line

    disks, lines = latency.disks(state.now_s), []
    for spec in asking:
        known = state.enforceable.get(spec.name)
        missing = () if known is None else known.missing
        reason = next((each.reason for each in missing if each.knob == KNOB), "")
        others = [each for each in state.specs.values() if each.name != spec.name]
        lines.append(latency_line(spec, modes.of(spec) is Mode.ENFORCE, disks, reason, others))
    return tuple(lines)


def _bands(state: State, modes: Modes) -> tuple[str, ...]:
    declared = [
        spec for spec in state.specs.values() if spec.band is not None and spec.name not in state.jobs
    ]
    if not declared:
        return ()
    from perphd.qos.band_report import BandMember, HostControls, report  # loaded only if bands are used

    members = []
    for spec in declared:
        known = state.enforceable.get(spec.name)
        knobs = frozenset() if known is None else known.knobs
        in_force = state.parts.executor.in_force(spec.name)
        enforced = modes.of(spec) is Mode.ENFORCE
        members.append(BandMember(spec, enforced, knobs, in_force, beside_gold(state, modes, spec)))
    network = state.config.network
    topology, actuators = state.topology, state.actuators
    controls = HostControls(
        llc_ways=actuators.llc_ways,
        copper_ways=state.bands.copper_ways,
        throttles=bool(actuators.mba_levels_pct),
        egress=network.names if network.batch_egress_max_bytes else (),
        smt=len(topology.usable) > len(topology.usable_cores),
    )
    return report(members, state.bands.division, controls)
