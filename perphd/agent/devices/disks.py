"""Measures contention on disks for the device backoff.

Its sources are ``/proc/diskstats``, the control groups' byte counts, and I/O pressure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.agent.devices.backoff import DeviceUse
from perphd.domain.allocation import KEEP, IoLimit, Settings
from perphd.domain.reading import available
from perphd.domain.sample import Sample
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.disk_use import DiskCounters, disk_counters, group_bytes
from perphd.host.fs import KernelFs
from perphd.qos.contention import Restriction

LEAST_WAIT_PCT: Final = 10.0
"""Minimum share of time, in percent, for which an LRA's tasks must wait for I/O to count as affected."""


class ContendedDisks:
    """The host's disks. Devices are whole disks, ``MAJOR:MINOR``; the ceiling is ``io.max``."""

    kind = "disk"

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._disks: dict[str, DiskCounters] = {}
        self._groups: dict[str, dict[str, int]] = {}

    def look(
        self, now_s: float, seconds: float, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]
    ) -> Mapping[str, DeviceUse]:
        """See ``WatchedDevices``."""
        disks_before, groups_before = self._disks, self._groups
        self._disks = disk_counters(self._fs)
        self._groups = {spec.name: group_bytes(self._fs, self._hierarchies, spec.cgroup) for spec in specs}
        waiting = {spec.name for spec in specs if _waits(samples.get(spec.name))}
        found = {}
        for device, now in self._disks.items():
            before = disks_before.get(device)
            if before is None:
                continue
            moved = {
                name: max(0, counts.get(device, 0) - groups_before[name].get(device, 0)) / seconds
                for name, counts in self._groups.items()
                if name in groups_before
            }
            busy = min(1.0, max(0.0, (now.busy_ms - before.busy_ms) / 1000.0 / seconds))
            found[device] = DeviceUse(busy, moved, waiting)
        return found

    def with_ceiling(self, device: str, restriction: Restriction, wanted: Settings) -> Settings:
        """See ``WatchedDevices``."""
        limit = max(1, int(restriction.limit_bytes_s))
        limits = () if wanted.io_max is KEEP else wanted.io_max
        others = tuple(each for each in limits if each.device != device)
        own = next((each for each in limits if each.device == device), IoLimit(device))
        own = replace(own, read_bytes=_less(own.read_bytes, limit), write_bytes=_less(own.write_bytes, limit))
        return replace(wanted, io_max=(*others, own))


def _waits(sample: Sample | None) -> bool:
    """True if the LRA's tasks wait for I/O, or if the kernel does not report it."""
    if sample is None:
        return False
    return not available(sample.io_some_pct) or sample.io_some_pct >= LEAST_WAIT_PCT


def _less(had: int | None, limit: int) -> int:
    return limit if had is None else min(had, limit)
