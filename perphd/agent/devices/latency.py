"""Sets the disk latency targets of workloads that ask for one (``io_latency_ms``), on all whole disks of the host.

If a group waits longer than its target, the kernel slows down its sibling groups without a target or with a
higher one. Groups below other parents are not affected (Documentation/admin-guide/cgroup-v2.rst, "IO
Latency").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perphd.domain.allocation import KEEP, Settings
from perphd.domain.workload import WorkloadSpec
from perphd.host.disk_use import disk_counters
from perphd.host.fs import KernelFs

LOOK_S: Final = 60.0
"""Seconds between two scans for disks."""
KNOB: Final = "io_latency_us"


class DiskLatency:
    """Latency targets for the present disks."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._disks: tuple[str, ...] = ()
        self._looked_s: float | None = None

    def disks(self, now_s: float) -> tuple[str, ...]:
        """The whole disks, ``MAJOR:MINOR``."""
        if self._looked_s is None or not 0.0 <= now_s - self._looked_s < LOOK_S:
            self._disks, self._looked_s = tuple(sorted(disk_counters(self._fs))), now_s
        return self._disks

    def over(self, spec: WorkloadSpec, wanted: Settings, now_s: float) -> Settings:
        """``wanted`` with the workload's target on every disk; unchanged if the workload has no target.

        The target is requested even where the kernel has no ``io.latency``, so that the status reports it as missing.
        """
        if not spec.io_latency_ms or wanted.io_latency_us is not KEEP:
            return wanted
        target_us = max(1, round(1000.0 * spec.io_latency_ms))
        disks = self.disks(now_s)
        return replace(wanted, io_latency_us=tuple((disk, target_us) for disk in disks)) if disks else wanted
