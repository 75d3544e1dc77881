"""Measures contention on network links for the device backoff.

Its sources are the devices' counters and the throughput of workloads' TCP connections.

No cgroup controller counts bytes sent. TCP counts them by connection: the bytes acknowledged by the peer are
the effective bandwidth, and the time with unacknowledged bytes is the time for which the sender waited.
sock_diag(7) reports the control group of each connection. Datagrams are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.agent.devices.backoff import DeviceUse
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.errors import KernelError
from perphd.domain.sample import Sample
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import descendants
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.cgroup.knobs import MIN_EGRESS_BYTES
from perphd.host.cgroup.lines import printable_rate
from perphd.host.fs import KernelFs
from perphd.host.link_use import device_addresses, link_speed, plain_address, sent_bytes
from perphd.host.sock_diag import Connection, tcp_connections
from perphd.qos.contention import Restriction

LEAST_WAIT_RATIO: Final = 0.5
"""Minimum share of time for which an LRA's data must wait for acknowledgement to count as affected."""
BEST_FADES: Final = 0.999
"""Ratio by which the greatest rate seen fades per sample. It stands for the speed of links of unknown speed."""
LEAST_BEST_BYTES_S: Final = 5e6
"""Bytes per second. A link of unknown speed whose greatest rate is below this never counts as busy."""
LOOK_S: Final = 10.0
"""Seconds between two scans of addresses and control groups."""


@dataclass(slots=True)
class _Sent:
    """A workload's bytes across a device since the last call, and the share of time they waited, times the bytes."""

    acked_bytes: float = 0.0
    waited: float = 0.0


@dataclass(slots=True)
class _Places:
    """Result of the latest scan: the device of each address, and the workload of each control group."""

    looked_s: float
    names: frozenset[str]
    devices: dict[bytes, str] = field(default_factory=dict)
    workloads: dict[int, str] = field(default_factory=dict)


class ContendedLinks:
    """The host's links. Devices are those of ``[network]``; the ceiling is the egress limit.

    ``full_ratio``: share of its speed from which a link counts as busy.
    """

    kind = "link"

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        devices: Sequence[str],
        full_ratio: float,
        connections: Callable[[], Sequence[Connection]] = tcp_connections,
        addresses: Callable[[], Mapping[bytes, str]] = device_addresses,
    ) -> None:
        self._fs, self._unified = fs, hierarchies.unified
        self._devices, self._full_ratio = tuple(devices), full_ratio
        self._connections, self._addresses = connections, addresses
        self._sent: dict[str, int] = {}
        self._known: dict[bytes, Connection] = {}
        self._best: dict[str, float] = {}
        self._places: _Places | None = None

    def look(
        self, now_s: float, seconds: float, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]
    ) -> Mapping[str, DeviceUse]:
        """See ``WatchedDevices``."""
        sent_before, known_before = self._sent, self._known
        try:
            found = self._connections()
        except KernelError:
            self._sent, self._known = {}, {}
            return {}
        self._sent, self._known = sent_bytes(self._fs), {each.cookie: each for each in found}
        places = self._looked_at(now_s, specs)
        if not sent_before:
            return {}
        got = {device: {spec.name: _Sent() for spec in specs} for device in self._devices}
        for each in found:
            device = places.devices.get(plain_address(each.address), "")
            one = got.get(device, {}).get(places.workloads.get(each.cgroup_id, ""))
            if one is None:
                continue
            before = known_before.get(each.cookie)
            acked = each.acked_bytes - (0 if before is None else before.acked_bytes)
            busy_us = each.busy_us - (0 if before is None else before.busy_us)
            one.acked_bytes += acked
            one.waited += acked * min(1.0, busy_us / 1e6 / seconds)
        return {
            device: DeviceUse(
                self._busy_ratio(device, (self._sent[device] - sent_before[device]) / seconds),
                {name: one.acked_bytes / seconds for name, one in by_name.items()},
                [
                    name
                    for name, one in by_name.items()
                    if one.acked_bytes and one.waited >= LEAST_WAIT_RATIO * one.acked_bytes
                ],
            )
            for device, by_name in got.items()
            if device in self._sent and device in sent_before
        }

    def with_ceiling(self, device: str, restriction: Restriction, wanted: Settings) -> Settings:
        """See ``WatchedDevices``."""
        limit = max(MIN_EGRESS_BYTES, printable_rate(int(restriction.limit_bytes_s)))
        ceilings = {} if wanted.egress_max is KEEP else dict(wanted.egress_max)
        ceilings[device] = min(limit, ceilings.get(device, limit))
        return replace(wanted, egress_max=tuple(sorted(ceilings.items())))

    def _busy_ratio(self, device: str, sent_bytes_s: float) -> float:
        """Utilisation of a link, 0 to 1. It reaches 1 at ``full_ratio`` of the link's known or estimated speed."""
        best = link_speed(self._fs, device)
        if not best:
            best = max(sent_bytes_s, BEST_FADES * self._best.get(device, 0.0))
            self._best[device] = best
            if best < LEAST_BEST_BYTES_S:
                return 0.0
        return min(1.0, max(0.0, sent_bytes_s) / (self._full_ratio * best))

    def _looked_at(self, now_s: float, specs: Sequence[WorkloadSpec]) -> _Places:
        names = frozenset(spec.name for spec in specs)
        places = self._places
        if places is not None and 0.0 <= now_s - places.looked_s < LOOK_S and names == places.names:
            return places
        places = self._places = _Places(now_s, names, dict(self._addresses()))
        if self._unified is not None:
            for spec in specs:
                top = self._unified.path(spec.cgroup)
                for path in (top, *descendants(self._fs, top)):
                    try:
                        places.workloads[self._fs.identity(path)[1]] = spec.name
                    except KernelError:
                        continue  # the group is gone
        return places
