"""v1's cpu, cpuacct and cpuset controllers."""

from __future__ import annotations

import errno
from collections.abc import Callable

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup1.hierarchy import Controller, V1Group
from perphd.sim.kernel.cgroup2.cpu import IDLE_SHARES, Cpu
from perphd.sim.kernel.cgroup2.rules import FileSpec, Kernel
from perphd.sim.kernel.vfs import refuse

_LEAST_SHARES, _MOST_SHARES = 2, 1 << 18


class V1Cpu:
    """The cpu controller: shares, idle and CFS bandwidth. A child may not have more bandwidth than its parent."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._group = group
        self._own = Cpu(Kernel())
        self._parent = parent if isinstance(parent, V1Cpu) else None

    @property
    def _control(self) -> Cpu:
        bound = self._group.bound
        return self._own if bound is None or bound.parent is None else bound.cpu_control

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        return [
            FileSpec("cpu.shares", self._read_shares, self._write_shares),
            FileSpec("cpu.idle", lambda: f"{int(self._control.idle)}\n", self._write_idle),
            FileSpec("cpu.cfs_quota_us", self._read_quota, self._write_quota),
            FileSpec("cpu.cfs_period_us", lambda: f"{self._control.period_us}\n", self._write_period),
            FileSpec("cpu.stat", self._read_stat),
        ]

    def check_tasks(self) -> None:
        """Never refuses."""

    def _read_shares(self) -> str:
        return f"{IDLE_SHARES if self._control.idle else self._control.shares}\n"

    def _write_shares(self, data: bytes) -> None:
        shares = formats.parse_u64(data)
        self._control.set_shares(min(_MOST_SHARES, max(_LEAST_SHARES, shares)))

    def _write_idle(self, data: bytes) -> None:
        self._control.set_idle(formats.parse_s64(data))

    def _read_quota(self) -> str:
        quota = self._control.quota_us
        return f"{-1 if quota is None else quota}\n"

    def _write_quota(self, data: bytes) -> None:
        quota = formats.parse_s64(data)
        self._set_bandwidth(None if quota < 0 else quota, self._control.period_us)

    def _write_period(self, data: bytes) -> None:
        self._set_bandwidth(self._control.quota_us, formats.parse_u64(data))

    def _set_bandwidth(self, quota_us: int | None, period_us: int) -> None:
        if not 1000 <= period_us <= 1_000_000 or (quota_us is not None and quota_us < 1000):
            raise refuse(errno.EINVAL)
        if quota_us is not None:
            share = quota_us / period_us
            above = self._above()
            if (above is not None and share > above) or any(share < below for below in self._below()):
                raise refuse(errno.EINVAL)
        self._control.quota_us, self._control.period_us = quota_us, period_us

    @property
    def _share(self) -> float | None:
        quota = self._control.quota_us
        return None if quota is None else quota / self._control.period_us

    def _above(self) -> float | None:
        here = self._parent
        while here is not None:
            if here._share is not None:
                return here._share
            here = here._parent
        return None

    def _below(self) -> list[float]:
        found = []
        for group in self._group.walk():
            controller = group.controllers["cpu"]
            if isinstance(controller, V1Cpu) and controller is not self and controller._share is not None:
                found.append(controller._share)
        return found

    def _read_stat(self) -> str:
        bound = self._group.bound
        periods, throttled, time_ns = (0, 0, 0)
        if bound is not None:
            stat = bound.cpu
            periods, throttled = int(stat.periods), int(stat.throttled_periods)
            time_ns = int(stat.throttled_s * 1e9)
        return f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time {time_ns}\nnr_bursts 0\nburst_time 0\n"


class V1CpuAcct:
    """The cpuacct controller: CPU time of the group and its descendants."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._group = group

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        return [
            FileSpec("cpuacct.usage", lambda: f"{int(self._times()[0] * 1e9)}\n", self._reset),
            FileSpec("cpuacct.usage_user", lambda: f"{int((self._times()[0] - self._times()[1]) * 1e9)}\n"),
            FileSpec("cpuacct.usage_sys", lambda: f"{int(self._times()[1] * 1e9)}\n"),
            FileSpec("cpuacct.stat", self._read_stat),
        ]

    def check_tasks(self) -> None:
        """Never refuses."""

    def _times(self) -> tuple[float, float]:
        bound = self._group.bound
        return (0.0, 0.0) if bound is None else (bound.cpu.usage_s, bound.cpu.system_s)

    def _reset(self, data: bytes) -> None:
        if formats.parse_u64(data):
            raise refuse(errno.EINVAL)

    def _read_stat(self) -> str:
        usage, system = self._times()
        return f"user {int((usage - system) * 100)}\nsystem {int(system * 100)}\n"


class V1Cpuset:
    """The cpuset controller: lists within the parent's and around the children's; no tasks without CPUs and memory."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._group = group
        self._parent = parent if isinstance(parent, V1Cpuset) else None
        tree = group.hierarchy.tree
        self.cpus = tree.online if parent is None else CpuSet()
        self.mems = tree.nodes if parent is None else CpuSet()
        self.exclusive = parent is None
        if self._parent is not None and group.managed:
            self.cpus, self.mems = self._parent.cpus, self._parent.mems

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        root = self._parent is None
        online = self._group.hierarchy.tree
        return [
            FileSpec("cpuset.cpus", lambda: f"{self.cpus}\n", self._locked if root else self._write_cpus),
            FileSpec("cpuset.mems", lambda: f"{self.mems}\n", self._locked if root else self._write_mems),
            FileSpec("cpuset.effective_cpus", lambda: f"{self.cpus & online.online}\n"),
            FileSpec("cpuset.effective_mems", lambda: f"{self.mems}\n"),
            FileSpec("cpuset.cpu_exclusive", lambda: f"{int(self.exclusive)}\n", self._write_exclusive),
            FileSpec("cpuset.sched_load_balance", lambda: "1\n"),
        ]

    def check_tasks(self) -> None:
        """Refuse with ENOSPC unless both lists are non-empty."""
        if not self.cpus or not self.mems:
            raise refuse(errno.ENOSPC)

    @staticmethod
    def _locked(data: bytes) -> None:
        raise refuse(errno.EACCES)  # the root's lists are the machine's

    def _write_cpus(self, data: bytes) -> None:
        tree = self._group.hierarchy.tree
        cpus = formats.parse_list(formats.text_of(data), tree.nr_cpus)
        self._check(cpus, self.cpus, lambda other: other.cpus)
        if any(other.cpus & cpus for other in self._siblings() if self.exclusive or other.exclusive):
            raise refuse(errno.EINVAL)
        self.cpus = cpus
        self._act()

    def _write_mems(self, data: bytes) -> None:
        nodes = formats.parse_list(formats.text_of(data), 64)
        if not nodes <= self._group.hierarchy.tree.nodes:
            raise refuse(errno.EINVAL)
        self._check(nodes, self.mems, lambda other: other.mems)
        self.mems = nodes
        self._act()

    def _write_exclusive(self, data: bytes) -> None:
        exclusive = bool(formats.parse_u64(data))
        if exclusive and self._parent is not None and not self._parent.exclusive:
            raise refuse(errno.EACCES)
        if exclusive and any(other.cpus & self.cpus for other in self._siblings()):
            raise refuse(errno.EINVAL)
        self.exclusive = exclusive

    def _check(self, new: CpuSet, old: CpuSet, part: Callable[[V1Cpuset], CpuSet]) -> None:
        if any(not part(child) <= new for child in self._children()):
            raise refuse(errno.EBUSY)
        if self._parent is not None and not new <= part(self._parent):
            raise refuse(errno.EACCES)
        if old and not new and self._group.processes():
            raise refuse(errno.ENOSPC)

    def _children(self) -> list[V1Cpuset]:
        found = [child.controllers["cpuset"] for child in self._group.children.values()]
        return [controller for controller in found if isinstance(controller, V1Cpuset)]

    def _siblings(self) -> list[V1Cpuset]:
        return [] if self._parent is None else [c for c in self._parent._children() if c is not self]

    def _act(self) -> None:
        bound = self._group.bound
        if bound is not None and bound.cpuset is not None and bound.parent is not None:
            bound.cpuset.restrict(self.cpus, self.mems)
