"""Reservations of workloads and capacity of the host: from the daemon, else from configuration and kernel.

``reserved_memory`` of the configuration counts first, else the limits of the workload's own control group. A limit
that perphd itself has set on it is not a reservation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from perphd.commands.base import Out
from perphd.control.client import Refused, Unreachable
from perphd.control.own_limits import NONE_SET, reserved
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.status import AgentStatus
from perphd.domain.topology import Topology
from perphd.domain.workload import WorkloadSpec
from perphd.sizing.recommendation import Reservation
from perphd.sizing.shaper import Resource

_FILE_ALONE = Unavailable("unknown: --store names a file without a daemon")


@dataclass(frozen=True, slots=True)
class ReservedPlace:
    """Sources of samples and facts.

    ``absent``: why a reservation of an undeclared workload is missing. ``most``: the known capacities of the host, by
    the name of a sample's reading. ``others``: present use by everything except perphd's workloads.
    """

    store: str
    capacity: Mapping[Resource, Reading]
    cgroups: Mapping[str, str] = field(default_factory=dict)
    reservations: Mapping[str, Mapping[Resource, Reservation]] = field(default_factory=dict)
    absent: Unavailable = NONE_SET
    most: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[Resource, Reading] = field(default_factory=dict)

    def reservation(self, workload: str, resource: Resource) -> Reservation:
        """The reservation of this resource; Unavailable if unknown."""
        return self.reservations.get(workload, {}).get(resource, Reservation(self.absent))


def find(out: Out, store: str | None) -> ReservedPlace:
    """The daemon's store and facts, the configured ones without a daemon, or only the file that ``store`` names.

    Raises:
        NotPermitted: this user may not ask the daemon.
        PerphError: no daemon answers, and the configuration cannot be read.
    """
    nothing: dict[Resource, Reading] = dict.fromkeys(Resource, _FILE_ALONE)
    if store is not None:
        return ReservedPlace(store, nothing, absent=_FILE_ALONE)
    try:
        return _from_daemon(out)
    except (Unreachable, Refused):
        return _from_configuration()


def _from_daemon(out: Out) -> ReservedPlace:
    from perphd.domain.wire import decode

    config = out.client.get("config")
    data = out.client.get("status")
    status = decode(AgentStatus, data)
    host = config.get("tuning", {}).get("host", {})
    topology = decode(Topology, out.client.get("doctor")["topology"])
    simulated = host.get("kind") == "simulated"
    specs = [(item.spec, item.in_force) for item in status.workloads]
    place = _place(
        config["store_path"], specs, "" if simulated else host.get("root", ""), topology, simulated
    )
    return replace(place, others=_others(status))


def _others(status: AgentStatus) -> dict[Resource, Reading]:
    """Use by everything except LRAs and batch, as in ``perphctl status``; empty before the daemon's second tick."""
    account = status.host
    if account is None:
        return {}
    cpu = account.cpu
    found: dict[Resource, Reading] = {Resource.CPU: cpu.undeclared + cpu.kernel + cpu.steal}
    total, left = account.memory_total_bytes, account.memory_available_bytes
    if available(total) and available(left):
        samples = [each.sample for each in status.workloads if each.present and each.sample is not None]
        known = (value_or(sample.memory_current_bytes, 0.0) for sample in samples)
        found[Resource.MEMORY] = max(0.0, total - left - math.fsum(known))
    return found


def _from_configuration() -> ReservedPlace:
    from perphd.config.file import load
    from perphd.host.fs import RealFs
    from perphd.host.topology import read_topology

    try:
        config = load(runtime=False)
    except ConfigError as exc:
        raise PerphError(
            f"no daemon answers, and the configured store cannot be determined: {exc}; name it with --store"
        ) from exc
    simulated = config.host.kind == "simulated"
    topology: Topology | Unavailable = Unavailable(
        "unknown: only the daemon that simulates this host can read it"
    )
    if not simulated:
        try:
            topology = read_topology(RealFs(config.host.root))
        except PerphError as exc:
            topology = Unavailable(f"unknown: {exc}")
    specs = [(spec, UNTOUCHED) for spec in config.workloads]
    return _place(config.store_path, specs, config.host.root, topology, simulated)


def _place(
    store: str, specs: list[tuple[WorkloadSpec, Settings]], root: str, topology: Topology | Unavailable,
    simulated: bool,
) -> ReservedPlace:  # fmt: skip
    from perphd.host.cgroup.group import Cgroups
    from perphd.host.cgroup.hierarchy import discover
    from perphd.host.fs import RealFs

    fs = RealFs(root)
    groups = Cgroups(fs, discover(fs))
    found = {}
    for spec, in_force in specs:
        group = None if simulated or not spec.cgroup else groups.group(spec.cgroup)
        own = frozenset(f.name for f in fields(in_force) if getattr(in_force, f.name) is not KEEP)
        found[spec.name] = {
            resource: reserved(fs, group, spec.min_memory_bytes, own, resource, spec.reserved_memory_bytes)
            for resource in Resource
        }
    cgroups = {spec.name: spec.cgroup for spec, _ in specs}
    most = {} if isinstance(topology, Unavailable) else topology.most
    return ReservedPlace(store, _capacity(topology), cgroups, found, most=most)


def _capacity(topology: Topology | Unavailable) -> dict[Resource, Reading]:
    if isinstance(topology, Unavailable):
        return dict.fromkeys(Resource, topology)
    memory = topology.memory_bytes
    return {
        Resource.CPU: float(len(topology.usable)),
        Resource.MEMORY: float(memory) if memory else Unavailable("not read"),
    }
