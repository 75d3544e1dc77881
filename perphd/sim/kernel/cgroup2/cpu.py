"""The cpu controller: weights, idle groups, bandwidth limits."""

from __future__ import annotations

import errno
from typing import Final

from perphd.sim.counters import CpuCounters
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2.rules import FileSpec, Kernel
from perphd.sim.kernel.vfs import refuse

IDLE_SHARES: Final = 3
"""Weight of a group with cpu.idle = 1 (the kernel's WEIGHT_IDLEPRIO); an ordinary group weighs 1024."""
IDLE_WEIGHT: Final = 100 * IDLE_SHARES / 1024
"""``IDLE_SHARES`` converted to the scale of cpu.weight, on which an ordinary group weighs 100."""
_LEAST_NICE: Final = -20
_SHARES_OF_NICE: Final = (
    *(88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916),
    *(9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277),
    *(1024, 820, 655, 526, 423, 335, 272, 215, 172, 137),
    *(110, 87, 70, 56, 45, 36, 29, 23, 18, 15),
)
"""The scheduler's weight of a nice value from -20 to 19: one step is 10 % of CPU time (sched_prio_to_weight)."""


class Cpu:
    """State and files of one group's cpu controller. ``shares``: the scheduler's weight, 1024 is ordinary."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.shares, self.idle = 1024, False
        self.quota_us: int | None = None
        self.period_us, self.burst_us = 100_000, 0

    @property
    def weight(self) -> int:
        """The weight on cpu.weight's scale; 100 is ordinary."""
        return (self.shares * 100 + 512) // 1024

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        return [
            FileSpec("cpu.weight", self._read_weight, self._write_weight),
            FileSpec("cpu.weight.nice", lambda: f"{self._nice()}\n", self._write_nice),
            FileSpec("cpu.idle", lambda: f"{int(self.idle)}\n", self._write_idle),
            FileSpec("cpu.max", self._read_max, self._write_max),
            FileSpec("cpu.max.burst", lambda: f"{self.burst_us}\n", self._write_burst),
        ]

    def _read_weight(self) -> str:
        idle = 1 if self._kernel.is_6_12 else 0
        return f"{idle if self.idle else self.weight}\n"

    def _write_weight(self, data: bytes) -> None:
        weight = formats.parse_u64(data)
        if not 1 <= weight <= 10_000:
            raise refuse(errno.ERANGE)
        self.set_shares((weight * 1024 + 50) // 100)

    def _nice(self) -> int:
        shares = IDLE_SHARES if self.idle else self.shares
        distances = [abs(step - shares) for step in _SHARES_OF_NICE]
        return distances.index(min(distances)) + _LEAST_NICE

    def _write_nice(self, data: bytes) -> None:
        nice = formats.parse_s64(data)
        if not _LEAST_NICE <= nice <= 19:
            raise refuse(errno.ERANGE)
        self.set_shares(_SHARES_OF_NICE[nice - _LEAST_NICE])

    def set_shares(self, shares: int) -> None:
        """Set the weight; OSError EINVAL while the group is idle."""
        if self.idle:
            raise refuse(errno.EINVAL)
        self.shares = shares

    def set_idle(self, idle: int) -> None:
        """Set 0 or 1, else OSError EINVAL; leaving idle forgets the earlier weight."""
        if idle not in (0, 1):
            raise refuse(errno.EINVAL)
        if self.idle and not idle:
            self.shares = 1024
        self.idle = bool(idle)

    def _write_idle(self, data: bytes) -> None:
        self.set_idle(formats.parse_s64(data))

    def _read_max(self) -> str:
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}\n"

    def _write_max(self, data: bytes) -> None:
        quota_us, period_us = formats.parse_cpu_max(data, self.period_us)
        if quota_us is not None and self.burst_us > quota_us:
            raise refuse(errno.EINVAL)
        self.quota_us, self.period_us = quota_us, period_us

    def _write_burst(self, data: bytes) -> None:
        burst_us = formats.parse_u64(data)
        if self.quota_us is not None and burst_us > self.quota_us:
            raise refuse(errno.EINVAL)
        self.burst_us = burst_us


def stat_text(stat: CpuCounters, *, with_bandwidth: bool, kernel: Kernel) -> str:
    """cpu.stat; lines about bandwidth are present if the controller is enabled."""
    usage, system = int(stat.usage_s * 1e6), int(stat.system_s * 1e6)
    text = f"usage_usec {usage}\nuser_usec {usage - system}\nsystem_usec {system}\n"
    if kernel.is_6_12:
        text += "nice_usec 0\n"
    if not with_bandwidth:
        return text
    return text + (
        f"nr_periods {int(stat.periods)}\nnr_throttled {int(stat.throttled_periods)}\n"
        f"throttled_usec {int(stat.throttled_s * 1e6)}\nnr_bursts 0\nburst_usec 0\n"
    )
