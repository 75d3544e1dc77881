"""What is reserved for workloads, and what the host has: from the daemon, else from configuration and kernel.

``reserved_memory`` of the configuration counts first, else the limits of the workload's own control group. A limit
that perphd itself has set on it is no reservation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from perphd.control.cli_base import Out
from perphd.control.client import Refused, Unreachable
from perphd.control.own_limits import NONE_SET, reserved
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.topology import Topology
from perphd.domain.workload import WorkloadSpec
from perphd.sizing.recommendation import Reservation
from perphd.sizing.shaper import Resource

_FILE_ALONE = Unavailable("unknown: --store names a file alone")


@dataclass(frozen=True, slots=True)
class Place:
    """Where samples and facts come from. ``absent``: why a reservation of an undeclared workload is missing."""

    store: str
    capacity: Mapping[Resource, Reading]
    cgroups: Mapping[str, str] = field(default_factory=dict)
    reservations: Mapping[str, Mapping[Resource, Reservation]] = field(default_factory=dict)
    absent: Unavailable = NONE_SET

    def reservation(self, workload: str, resource: Resource) -> Reservation:
        """What is reserved of this resource; not available where nobody knows."""
        return self.reservations.get(workload, {}).get(resource, Reservation(self.absent))


def find(out: Out, store: str | None, *, with_capacity: bool = False) -> Place:
    """The daemon's store and facts; the configured ones without a daemon; a file alone where ``store`` names it.

    Raises:
        NotPermitted: this user may not ask the daemon.
        PerphError: no daemon answers, and the configuration cannot be read.
    """
    nothing: dict[Resource, Reading] = dict.fromkeys(Resource, _FILE_ALONE)
    if store is not None:
        return Place(store, nothing, absent=_FILE_ALONE)
    try:
        return _from_daemon(out, with_capacity)
    except (Unreachable, Refused):
        return _from_configuration(with_capacity)


def _from_daemon(out: Out, with_capacity: bool) -> Place:
    from perphd.control.wire import decode
    from perphd.domain.status import AgentStatus

    config = out.client.get("config")
    data = out.client.get("status")
    status = decode(AgentStatus, data)
    host = config.get("host", {})
    topology = decode(Topology, out.client.get("doctor")["topology"]) if with_capacity else None
    simulated = host.get("kind") == "simulated"
    specs = [(item.spec, item.in_force) for item in status.workloads]
    return _place(config["store_path"], specs, "" if simulated else host.get("root", ""), topology, simulated)


def _from_configuration(with_capacity: bool) -> Place:
    from perphd.agent.config import load
    from perphd.host.fs import RealFs
    from perphd.host.topology import read_topology

    try:
        config = load(runtime=False)
    except ConfigError as exc:
        raise PerphError(
            f"no daemon answers, and where its store is cannot be read either: {exc}; name it with --store"
        ) from exc
    topology = read_topology(RealFs(config.host.root)) if with_capacity else None
    specs = [(spec, UNTOUCHED) for spec in config.workloads]
    return _place(config.store_path, specs, config.host.root, topology, config.host.kind == "simulated")


def _place(
    store: str, specs: list[tuple[WorkloadSpec, Settings]], root: str, topology: Topology | None, simulated: bool,
) -> Place:  # fmt: skip
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
    return Place(store, _capacity(topology), {spec.name: spec.cgroup for spec, _ in specs}, found)


def _capacity(topology: Topology | None) -> dict[Resource, Reading]:
    unread = Unavailable("not read")
    if topology is None:
        return dict.fromkeys(Resource, unread)
    memory = topology.memory_bytes
    return {
        Resource.CPU: float(len(topology.usable)),
        Resource.MEMORY: float(memory) if memory else unread,
    }
