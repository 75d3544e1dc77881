"""Performance counters of a cgroup through perf_event_open(2): hardware events with a PMU, else software
events.

There is one group of events per workload and CPU. Every member is opened with the cgroup's directory, because
without it a member counts the whole CPU. Opening goes through ctypes; reading a group is one read(2) and one
unpack. See perf_event_open(2) and tools/perf/design.txt.

Counts are as the kernel gives them, never scaled by time_enabled / time_running. Both times are wrong for
shared counters: after a cgroup's last counter was closed, the next time_enabled on that CPU includes the gap
(6.1, 6.12), and 6.12 accounts time_running of multiplexed groups wrongly. The group's own task clock is right
in all of these cases, so callers scale by it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Self

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, Full, Gone, KernelError, kernel_error
from perphd.domain.reading import Reading, Unavailable
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.descriptors import raise_limit
from perphd.host.perf_event_types import (
    COMMON_CODES,
    PROCESSOR_UNKNOWN,
    SOFTWARE_CODES,
    EventCode,
    EventCodes,
    EventRefused,
    EventSupport,
    PerfEventKind,
)


class _Attr(ctypes.Structure):
    """The first 64 bytes of perf_event_attr (PERF_ATTR_SIZE_VER0), which suffice for counting."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        (
            "flags",
            ctypes.c_uint64,
        ),  # bit field; 0: enabled, not inherited, excludes nothing, not pinned
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("bp_addr", ctypes.c_uint64),
    )


_SYSCALL_NUMBERS: Final = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_FORMAT_ENABLED_RUNNING_GROUP: Final = 1 | 2 | 8
_FLAG_PID_CGROUP: Final = 4
_FLAG_CLOEXEC: Final = 8

_NO_PMU = (
    "no performance monitoring unit is visible here, or it lacks this event (usual in virtual machines: "
    "let the hypervisor pass the vPMU through)"
)
_TOO_MANY = "the PMU counts the event alone, but has too few counters for the whole group"
_CGROUPS_UNSEEN = (
    "perf does not know cgroups until the root's cgroup.subtree_control has been written once "
    "(systemd always does)"
)
_OTHER_HIERARCHY = (
    "perf_event is bound to a cgroup v1 hierarchy (see /proc/self/cgroup): only its directories identify cgroups "
    "to perf"
)
_NOT_PERMITTED = (
    "needs CAP_PERFMON (CAP_SYS_ADMIN if kernel.perf_event_paranoid is above 2), or kernel.perf_event_paranoid at 0 "
    "or below"
)

_ABOUT_THE_EVENT: Final = frozenset(
    (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, errno.E2BIG, errno.ENXIO, errno.ENODEV)
)
"""Errors about one event or a group's size. Any other error would apply to every event."""

_ENABLED, _RUNNING = 1, 2
"""Indices of time_enabled and time_running in a group's reading."""
_BRIEF_NS: Final = 1_000_000
"""Time enabled, in ns, below which a group is not judged as starved."""

_libc = ctypes.CDLL(None, use_errno=True)


def perf_hierarchy(hierarchies: Hierarchies) -> Hierarchy | None:
    """The hierarchy whose directories identify cgroups to perf: v1's perf_event if mounted, else the unified one."""
    return hierarchies.of("perf_event") or hierarchies.unified


class PerfOpener:
    """An ``EventOpener`` of this kernel for a host with these event codes."""

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> PerfEventGroup:
        """See ``open_group``."""
        return open_group(cgroup_dir, cpus, events, self._codes)


def open_group(
    cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind], codes: EventCodes = COMMON_CODES
) -> PerfEventGroup:
    """Open these events as one group on each of these CPUs, for the tasks of one cgroup.

    Args:
        cgroup_dir: the cgroup's directory in the hierarchy of perf_event (``perf_hierarchy``).
        cpus: usually the online ones; CPUs that are offline by now are left out (``lost_cpus``).
        events: in this order, without repetition. With hardware events first, one group can hold both kinds.
        codes: the host's event codes.

    Raises:
        ValueError: no events, or no CPUs.
        Full: more descriptors are needed than RLIMIT_NOFILE allows, even with the soft limit raised.
        EventRefused: one of the events is not counted here, or the group exceeds the PMU's counters.
        Busy: perf does not know this cgroup yet.
        Denied: perf_event_paranoid and capabilities do not allow it.
        Gone: the cgroup does not exist, or none of the CPUs is online.
    """
    if not events or not cpus or len(set(events)) != len(events):
        raise ValueError("open_group needs at least one CPU and at least one event, without repetition")
    coded: list[tuple[PerfEventKind, EventCode]] = []
    for kind in events:
        code = codes.get(kind, PROCESSOR_UNKNOWN)
        if isinstance(code, Unavailable):
            operation = f"perf_event_open({kind.label})"
            raise EventRefused(cgroup_dir, operation, errno.EOPNOTSUPP, kind, advice=code.reason)
        coded.append((kind, code))
    reserve_fds(len(cpus) * len(events))
    try:
        directory = os.open(cgroup_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise kernel_error(exc, cgroup_dir, "open") from exc
    opened: dict[int, list[int]] = {}
    try:
        for cpu in cpus:
            fds = _open_on_cpu(directory, cgroup_dir, cpu, coded)
            if fds:
                opened[cpu] = fds
        if not opened:
            raise Gone(cgroup_dir, "perf_event_open", errno.ENODEV, detail=f"no CPU of {cpus} is online")
    except BaseException:
        for fds in opened.values():
            _close_all(fds)
        raise
    finally:
        os.close(directory)
    return PerfEventGroup(tuple(events), opened, cpus - CpuSet.of(opened))


def probe_events(cgroup_dir: str, codes: EventCodes = COMMON_CODES) -> EventSupport:
    """Try every event alone for this cgroup, on the first CPU that perphd may use.

    Returns which events work, and why the others do not.
    """
    cpu = CpuSet.of([min(os.sched_getaffinity(0))])
    supported: list[PerfEventKind] = []
    missing: dict[PerfEventKind, KernelError] = {}
    for kind in PerfEventKind:
        try:
            open_group(cgroup_dir, cpu, (kind,), codes).close()
        except KernelError as exc:
            missing[kind] = exc
        else:
            supported.append(kind)
    return EventSupport(tuple(supported), MappingProxyType(missing))


def reserve_fds(count: int) -> None:
    """Make sure that ``count`` more descriptors fit, raising the soft limit to the hard limit if necessary.

    Raises:
        Full: they exceed the hard limit as well.
    """
    needed = len(os.listdir("/proc/self/fd")) + count
    allowed = raise_limit()
    if allowed is not None and needed > allowed:
        raise Full(
            "/proc/self/fd",
            "perf_event_open",
            errno.EMFILE,
            detail=f"{needed} descriptors are needed (limit {allowed})",
            advice="raise LimitNOFILE= of the unit, or watch fewer workloads",
        )


class PerfEventGroup:
    """Counters of one cgroup on real CPUs; ``EventGroup`` documents the methods."""

    def __init__(
        self, events: tuple[PerfEventKind, ...], fds: Mapping[int, list[int]], lost_cpus: CpuSet
    ) -> None:
        self._events = events
        self._cpus = [_CpuCounters(cpu, own, events) for cpu, own in fds.items()]
        self._lost = lost_cpus
        self._totals = [0] * len(events)
        self._starved = CpuSet()
        self._counts: Mapping[PerfEventKind, Reading] = {}

    def read(self) -> Mapping[PerfEventKind, Reading]:
        """Counts since opening; see ``EventGroup.read``."""
        moved = False
        starved: list[int] = []
        gone: list[_CpuCounters] = []
        for counters in self._cpus:
            grown = counters.advance()
            if grown is None:
                gone.append(counters)
                continue
            if grown is counters.still:
                continue
            moved = True
            if grown.starved:
                starved.append(counters.cpu)
            for index, count in enumerate(grown.counts):
                self._totals[index] += count
        for counters in gone:
            counters.close()
            self._cpus.remove(counters)
            self._lost = self._lost | CpuSet.of([counters.cpu])
        self._starved = CpuSet.of(starved)
        if self._counts and not moved and not gone:
            return self._counts
        if self._cpus:
            self._counts = dict(zip(self._events, map(float, self._totals), strict=True))
            return self._counts
        self._counts = {}
        return dict.fromkeys(self._events, Unavailable("no counter is left: all of its CPUs went offline"))

    @property
    def events(self) -> tuple[PerfEventKind, ...]:
        """The counted events."""
        return self._events

    @property
    def starved_cpus(self) -> CpuSet:
        """CPUs where the workload seems to have run without its counters."""
        return self._starved

    @property
    def lost_cpus(self) -> CpuSet:
        """CPUs on which counting could not be started or has ended."""
        return self._lost

    @property
    def fds(self) -> int:
        """Number of open descriptors."""
        return sum(len(counters.fds) for counters in self._cpus)

    def close(self) -> None:
        """Close all descriptors."""
        for counters in self._cpus:
            counters.close()
        self._cpus.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Growth(NamedTuple):
    """Growth on one CPU since the last reading, and whether the group missed most of that time."""

    counts: tuple[int, ...]
    starved: bool


class _CpuCounters:
    """One event group on one CPU, with its last reading."""

    __slots__ = ("_clock", "_data", "_last", "_size", "_unpack", "cpu", "fds", "still")

    def __init__(self, cpu: int, fds: list[int], events: Sequence[PerfEventKind]) -> None:
        self.cpu, self.fds = cpu, fds
        # Number of events, time enabled, time running, counts; signed, so that a wrapped count is recognised.
        layout = struct.Struct(f"={3 + len(events)}q")
        self._size, self._unpack = layout.size, layout.unpack
        self._last: tuple[int, ...] = (len(events),) + (0,) * (2 + len(events))
        clock = PerfEventKind.TASK_CLOCK_NS
        self._clock = 3 + tuple(events).index(clock) if clock in events else _RUNNING
        self._data = b""
        self.still = _Growth((0,) * len(events), False)
        """Growth of a group that did not run on this CPU since the last reading."""

    def advance(self) -> _Growth | None:
        """Read the growth; None if the group is broken, for example because its CPU went offline."""
        try:
            data = os.read(self.fds[0], self._size)
        except OSError:
            return None
        if len(data) != self._size:
            return None
        if data == self._data:
            return self.still
        now = self._unpack(data)
        last = self._last
        if now[0] != last[0]:
            return None
        self._data, self._last = data, now
        counts = tuple([new - old for new, old in zip(now[3:], last[3:], strict=True)])
        if min(counts) < 0:
            # Never observed on a healthy kernel; after such a reset the next interval is correct again.
            return self.still
        enabled, counted = now[_ENABLED] - last[_ENABLED], now[self._clock] - last[self._clock]
        return _Growth(counts, enabled > _BRIEF_NS and 2 * counted < enabled)

    def close(self) -> None:
        _close_all(self.fds)
        self.fds = []


def _open_on_cpu(
    directory: int, cgroup_dir: str, cpu: int, events: Sequence[tuple[PerfEventKind, EventCode]]
) -> list[int]:
    """The group's descriptors, leader first; empty if that CPU is offline."""
    fds: list[int] = []
    try:
        for _, code in events:
            fds.append(_perf_event_open(code, directory, cpu, fds[0] if fds else -1, _FLAG_PID_CGROUP))
    except OSError as exc:
        _close_all(fds)
        clock = _refusal(SOFTWARE_CODES[PerfEventKind.TASK_CLOCK_NS], directory, cpu)
        if clock == errno.ENODEV:
            return []
        kind, code = events[len(fds)]
        alone = bool(fds) and not _refusal(code, directory, cpu)
        raise _explained(exc, cgroup_dir, kind, cpu, alone, clock) from exc
    return fds


def _refusal(code: EventCode, directory: int, cpu: int) -> int:
    """The kernel's errno for this event alone; 0: it is counted."""
    try:
        os.close(_perf_event_open(code, directory, cpu, -1, _FLAG_PID_CGROUP))
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0


def _perf_event_open(code: EventCode, pid: int, cpu: int, group: int, flags: int) -> int:
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of perf_event_open on {platform.machine()} is unknown")
    attr = _Attr(
        type=code.type,
        size=ctypes.sizeof(_Attr),
        config=code.config,
        read_format=_FORMAT_ENABLED_RUNNING_GROUP,
    )
    fd: int = _libc.syscall(
        ctypes.c_long(number),
        ctypes.byref(attr),
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(group),
        ctypes.c_ulong(flags | _FLAG_CLOEXEC),
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def _explained(
    exc: OSError, cgroup_dir: str, kind: PerfEventKind, cpu: int, alone: bool, clock: int
) -> KernelError:
    """The class and text for a refusal.

    ``alone``: the event can be counted alone. ``clock``: the errno for the task clock, which needs no PMU.
    """
    operation = f"perf_event_open({kind.label}, CPU {cpu})"
    number = exc.errno or errno.EIO
    if clock == errno.ENOENT:
        # The error means neither "gone" nor a refused event: perf does not know the directory as a cgroup.
        advice = _OTHER_HIERARCHY if _perf_is_v1() else _CGROUPS_UNSEEN
        return Busy(cgroup_dir, operation, number, advice=advice)
    if number in _ABOUT_THE_EVENT:
        if not alone:
            return EventRefused(cgroup_dir, operation, number, kind, advice=_NO_PMU)
        return EventRefused(cgroup_dir, operation, number, kind, too_many=True, advice=_TOO_MANY)
    advice = ""
    if number in (errno.EACCES, errno.EPERM):
        advice = _NOT_PERMITTED
    elif number == errno.EBADF:
        advice = "the directory is not a cgroup of the hierarchy that perf uses"
    return kernel_error(exc, cgroup_dir, operation, advice=advice)


def _perf_is_v1() -> bool:
    """True if perf_event is bound to a cgroup v1 hierarchy."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return any("perf_event" in line.split(":")[1].split(",") for line in file if line.count(":") >= 2)
    except OSError:
        return False


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
