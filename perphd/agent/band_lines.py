"""What ``perphctl doctor`` says about bands: the facts of this host, for ``perphd.qos.band_report``."""

from __future__ import annotations

from perphd.agent.modes import Modes
from perphd.agent.state import State
from perphd.domain.workload import Mode


def band_lines(state: State, modes: Modes) -> tuple[str, ...]:
    """One line for each workload that declares its band, one for copper, and one for the host's own daemons."""
    declared = [
        spec for spec in state.specs.values() if spec.band is not None and spec.name not in state.jobs
    ]
    if not declared:
        return ()
    from perphd.qos.band_report import BandMember, HostControls, report  # not loaded without bands

    members = []
    for spec in declared:
        known = state.enforceable.get(spec.name)
        knobs = frozenset() if known is None else known.knobs
        in_force = state.parts.executor.in_force(spec.name)
        members.append(BandMember(spec, modes.of(spec) is Mode.ENFORCE, knobs, in_force))
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
