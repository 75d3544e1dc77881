"""What is reserved for workloads, and what the host has: from the daemon, else from configuration and kernel.

Only the workload's own control group is read. A limit that perphd itself has set on it is no reservation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import basename
from typing import TYPE_CHECKING, Any

from perphd.control.cli_base import Out
from perphd.control.client import Refused, Unreachable
from perphd.domain.allocation import KEEP, NO_LIMIT, UNTOUCHED, Settings
from perphd.domain.errors import ConfigError, KernelError, ParseError, PerphError
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.topology import Topology
from perphd.domain.workload import WorkloadSpec
from perphd.sizing.recommendation import Reservation
from perphd.sizing.shaper import Resource

if TYPE_CHECKING:
    from perphd.host.cgroup.group import Cgroup
    from perphd.host.fs import KernelFs

NONE_SET = Unavailable("none set")
_FILE_ALONE = Unavailable("unknown: --store names a file alone")
_SETTINGS = {
    Resource.CPU: ("cpu_max_cores",),
    Resource.MEMORY: ("memory_max_bytes", "memory_high_bytes"),
}


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
        found[spec.name] = {resource: _reserved(fs, group, spec, in_force, resource) for resource in Resource}
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


def _reserved(
    fs: KernelFs, group: Cgroup | None, spec: WorkloadSpec, in_force: Settings, resource: Resource
) -> Reservation:
    least = float(spec.min_memory_bytes) if resource is Resource.MEMORY else 0.0
    if group is None:
        return Reservation(Unavailable("unknown: not read from a simulated host"), "", least)
    for setting in _SETTINGS[resource]:
        if getattr(in_force, setting) is not KEEP:
            continue
        amount, source = _own_limit(fs, group, setting)
        if source:
            return Reservation(amount, source, least)
    return Reservation(NONE_SET, "", least)


def _own_limit(fs: KernelFs, group: Cgroup, setting: str) -> tuple[float, str]:
    """The limit and the kernel's file that holds it; no file where there is no limit, or none can be read."""
    from perphd.host.cgroup.knobs import decode
    from perphd.host.fs import read_text

    knob = group.knob(setting)
    if isinstance(knob, str):
        return 0.0, ""
    try:
        texts = {basename(path): read_text(fs, path).strip() for path in knob.paths}
        value: Any = decode(setting, knob.version, texts)
    except (KernelError, ParseError):
        return 0.0, ""
    return (0.0, "") if value in (KEEP, NO_LIMIT) else (float(value), basename(knob.paths[0]))
