"""Performance counters of a cgroup through perf_event_open(2): hardware ones where there is a PMU, else software.

One group of events per workload and CPU, every member opened with the cgroup's directory (a member opened
without it counts the whole CPU). Opening goes through ctypes; reading a group is one read(2) and one unpack.
See perf_event_open(2) and tools/perf/design.txt.

Counts are given as the kernel counted them, never scaled by time_enabled / time_running. Both times are wrong where
counters are shared: after a cgroup's last counter was closed, the next time_enabled on that CPU covers the gap
(6.1, 6.12); 6.12 books time_running of multiplexed groups wrongly. The group's own task clock is right in all of
these cases, so the caller relates counts to it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, Full, Gone, KernelError, Unsupported, kernel_error
from perphd.domain.reading import Reading, Unavailable
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.descriptors import raise_limit

HARDWARE_TYPE: Final = 0
"""PERF_TYPE_HARDWARE: the kernel's generalised hardware events."""
SOFTWARE_TYPE: Final = 1
"""PERF_TYPE_SOFTWARE."""


class EventKind(Enum):
    """What can be counted; the value is its name for people. Codes are a host's: ``EventCodes``.

    ``STALL_BACKEND``: cycles in which nothing was issued or executed for want of resources or data.
    ``STALL_MEMORY``: those of them that waited for memory beyond the last-level cache.
    """

    INSTRUCTIONS = "instructions"
    CYCLES = "cycles"
    LLC_REFERENCES = "llc-references"
    LLC_MISSES = "llc-misses"
    STALL_BACKEND = "stall-backend"
    STALL_MEMORY = "stall-memory"
    TASK_CLOCK_NS = "task-clock-ns"
    CONTEXT_SWITCHES = "context-switches"
    CPU_MIGRATIONS = "cpu-migrations"
    PAGE_FAULTS = "page-faults"

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python, at every look-up

    @property
    def is_hardware(self) -> bool:
        """True if it needs a PMU."""
        return self not in _SOFTWARE_CODES

    @property
    def label(self) -> str:
        """Its name for people, e.g. ``llc-misses``."""
        return self.value


class EventCode(NamedTuple):
    """How the kernel names an event: ``type`` and ``config`` of perf_event_attr."""

    type: int
    config: int


EventCodes: TypeAlias = Mapping[EventKind, EventCode | Unavailable]
"""A host's code of every event, or why it has none: ``perphd.host.pmu``."""

_SOFTWARE_CODES: Final = {
    EventKind.TASK_CLOCK_NS: EventCode(SOFTWARE_TYPE, 1),
    EventKind.CONTEXT_SWITCHES: EventCode(SOFTWARE_TYPE, 3),
    EventKind.CPU_MIGRATIONS: EventCode(SOFTWARE_TYPE, 4),
    EventKind.PAGE_FAULTS: EventCode(SOFTWARE_TYPE, 2),
}
_PROCESSOR_UNKNOWN: Final = Unavailable("it is not known how this processor names the event")
COMMON_CODES: Final[EventCodes] = MappingProxyType(
    dict.fromkeys(EventKind, _PROCESSOR_UNKNOWN)
    | {
        EventKind.INSTRUCTIONS: EventCode(HARDWARE_TYPE, 1),
        EventKind.CYCLES: EventCode(HARDWARE_TYPE, 0),
    }
    | _SOFTWARE_CODES
)
"""Events that have the same code, and mean the same, on every processor."""


HARDWARE_EVENTS: Final = tuple(kind for kind in EventKind if kind.is_hardware)
SOFTWARE_EVENTS: Final = tuple(kind for kind in EventKind if not kind.is_hardware)


class EventRefused(Unsupported):
    """The kernel does not count this event: do without it.

    Args:
        path: the cgroup's directory.
        operation: what was tried.
        errno: the kernel's answer.
        kind: the event.
        too_many: the event alone would be counted; the group has more events than the PMU has counters.
        advice: what a person can do.
    """

    def __init__(
        self, path: str, operation: str, errno: int, kind: EventKind, too_many: bool = False, advice: str = ""
    ) -> None:
        super().__init__(path, operation, errno, advice=advice)
        self.kind, self.too_many = kind, too_many


class EventGroup(Protocol):
    """Open counters of one workload. All its events are counted at the same moments."""

    def read(self) -> Mapping[EventKind, Reading]:
        """Counts since opening, summed over CPUs, as counted; never falling from call to call.

        Where counters were shared with others, the workload ran longer than was counted: TASK_CLOCK_NS says how long
        the group counted. May be the very object of the call before where nothing was counted meanwhile.
        """

    @property
    def events(self) -> tuple[EventKind, ...]:
        """What is counted, in the order of opening."""

    @property
    def starved_cpus(self) -> CpuSet:
        """CPUs on which the workload ran since the last reading, and the counters for less than half of that time.

        By the kernel's time_enabled, which is too long on some CPUs after a restart: a hint, not evidence.
        """

    @property
    def lost_cpus(self) -> CpuSet:
        """CPUs that could not be opened or went away: what ran there later is missing. Reopen to follow."""

    @property
    def fds(self) -> int:
        """Descriptors held."""

    def close(self) -> None:
        """Give the descriptors back; closing twice is fine."""


class EventOpener(Protocol):
    """The way to counters: ``open_group`` on a real host, something else on a simulated one."""

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind]) -> EventGroup:
        """Open one group on each CPU; raises KernelError classes."""


@dataclass(frozen=True, slots=True)
class EventSupport:
    """Which events this kernel counts, per cgroup. ``missing`` gives the reason for each of the others."""

    supported: tuple[EventKind, ...]
    missing: Mapping[EventKind, KernelError]


class _Attr(ctypes.Structure):
    """The first 64 bytes of perf_event_attr (PERF_ATTR_SIZE_VER0): all that plain counting needs."""

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
        ),  # bit field; 0: enabled, inherited by nobody, excludes nothing, not pinned
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
_TOO_MANY = "the PMU counts the event alone, but has too few counters for it beside the others of the group"
_CGROUPS_UNSEEN = (
    "perf does not see cgroups until something was once written to the root's cgroup.subtree_control "
    "(systemd always does)"
)
_OTHER_HIERARCHY = (
    "perf_event is bound to a cgroup v1 hierarchy (see /proc/self/cgroup): only directories of that one name cgroups "
    "to perf"
)
_NOT_PERMITTED = (
    "needs CAP_PERFMON (CAP_SYS_ADMIN if kernel.perf_event_paranoid is above 2), or kernel.perf_event_paranoid at 0 "
    "or below"
)

_ABOUT_THE_EVENT: Final = frozenset(
    (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, errno.E2BIG, errno.ENXIO, errno.ENODEV)
)
"""Refusals of one event or of a group's size. Anything else would be the answer to every event."""

_ENABLED, _RUNNING = 1, 2
"""Where a group's reading has time_enabled and time_running."""
_BRIEF_NS: Final = 1_000_000
"""Time in which nothing is said about whether counters ran."""

_libc = ctypes.CDLL(None, use_errno=True)


def perf_hierarchy(hierarchies: Hierarchies) -> Hierarchy | None:
    """The tree whose directories name cgroups to perf: v1's perf_event if mounted, else the unified one."""
    return hierarchies.of("perf_event") or hierarchies.unified


class PerfOpener:
    """An ``EventOpener`` of this kernel, for a host whose events have these codes."""

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind]) -> PerfEventGroup:
        """See ``open_group``."""
        return open_group(cgroup_dir, cpus, events, self._codes)


def open_group(
    cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind], codes: EventCodes = COMMON_CODES
) -> PerfEventGroup:
    """Open these events as one group on each of these CPUs, for the tasks of one cgroup.

    Args:
        cgroup_dir: the cgroup's directory in the hierarchy that perf_event lives in (``perf_hierarchy``).
        cpus: usually the online ones; those that are offline by now are left out (``lost_cpus``).
        events: in this order; without repetition. Hardware events first lets the kernel group both kinds.
        codes: how this host names them.

    Raises:
        ValueError: no events, or no CPUs.
        Full: more descriptors are needed than RLIMIT_NOFILE allows, even after raising the soft limit.
        EventRefused: one of the events is not counted here, or the group has more than the PMU can count at once.
        Busy: perf does not see this cgroup yet.
        Denied: perf_event_paranoid and capabilities do not allow it.
        Gone: the cgroup does not exist, or none of the CPUs is online.
    """
    if not events or not cpus or len(set(events)) != len(events):
        raise ValueError("open_group wants at least one CPU and at least one event, none of them twice")
    coded: list[tuple[EventKind, EventCode]] = []
    for kind in events:
        code = codes.get(kind, _PROCESSOR_UNKNOWN)
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
    """Try every event once, alone, on one CPU of this cgroup, and say which work and why the others do not."""
    cpu = CpuSet.of([min(os.sched_getaffinity(0))])
    supported: list[EventKind] = []
    missing: dict[EventKind, KernelError] = {}
    for kind in EventKind:
        try:
            open_group(cgroup_dir, cpu, (kind,), codes).close()
        except KernelError as exc:
            missing[kind] = exc
        else:
            supported.append(kind)
    return EventSupport(tuple(supported), MappingProxyType(missing))


def reserve_fds(count: int) -> None:
    """Make sure that ``count`` more descriptors fit, raising the soft limit to the hard one if need be.

    Raises:
        Full: they do not fit under the hard limit either.
    """
    needed = len(os.listdir("/proc/self/fd")) + count
    allowed = raise_limit()
    if allowed is not None and needed > allowed:
        raise Full(
            "/proc/self/fd",
            "perf_event_open",
            errno.EMFILE,
            detail=f"{needed} descriptors are needed, {allowed} are allowed",
            advice="raise LimitNOFILE= of the unit, or watch fewer workloads",
        )


class PerfEventGroup:
    """Counters of one cgroup on real CPUs; see ``EventGroup`` for what the public face means."""

    def __init__(
        self, events: tuple[EventKind, ...], fds: Mapping[int, list[int]], lost_cpus: CpuSet
    ) -> None:
        self._events = events
        self._cpus = [_CpuCounters(cpu, own, events) for cpu, own in fds.items()]
        self._lost = lost_cpus
        self._totals = [0] * len(events)
        self._starved = CpuSet()
        self._counts: Mapping[EventKind, Reading] = {}

    def read(self) -> Mapping[EventKind, Reading]:
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
        return dict.fromkeys(self._events, Unavailable("the counters were lost with their CPUs"))

    @property
    def events(self) -> tuple[EventKind, ...]:
        """What is counted."""
        return self._events

    @property
    def starved_cpus(self) -> CpuSet:
        """CPUs where the workload seems to have run without its counters."""
        return self._starved

    @property
    def lost_cpus(self) -> CpuSet:
        """CPUs that are not, or no longer, counted."""
        return self._lost

    @property
    def fds(self) -> int:
        """Descriptors held."""
        return sum(len(counters.fds) for counters in self._cpus)

    def close(self) -> None:
        """Give the descriptors back."""
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
    """What one CPU added since its last reading, and whether the group missed most of that time."""

    counts: tuple[int, ...]
    starved: bool


class _CpuCounters:
    """One event group on one CPU, with what was last read of it."""

    __slots__ = ("_clock", "_data", "_last", "_size", "_unpack", "cpu", "fds", "still")

    def __init__(self, cpu: int, fds: list[int], events: Sequence[EventKind]) -> None:
        self.cpu, self.fds = cpu, fds
        # Number of events, time enabled, time running, counts; signed, so that a wrapped count shows as such.
        layout = struct.Struct(f"={3 + len(events)}q")
        self._size, self._unpack = layout.size, layout.unpack
        self._last: tuple[int, ...] = (len(events),) + (0,) * (2 + len(events))
        clock = EventKind.TASK_CLOCK_NS
        self._clock = 3 + tuple(events).index(clock) if clock in events else _RUNNING
        self._data = b""
        self.still = _Growth((0,) * len(events), False)
        """What is given when nothing has moved: the group did not run on this CPU."""

    def advance(self) -> _Growth | None:
        """Read once; None if the group fell apart, as it does when its CPU goes offline."""
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
            # Never seen of a healthy kernel; after a reset the next interval is sound again.
            return self.still
        enabled, counted = now[_ENABLED] - last[_ENABLED], now[self._clock] - last[self._clock]
        return _Growth(counts, enabled > _BRIEF_NS and 2 * counted < enabled)

    def close(self) -> None:
        _close_all(self.fds)
        self.fds = []


def _open_on_cpu(
    directory: int, cgroup_dir: str, cpu: int, events: Sequence[tuple[EventKind, EventCode]]
) -> list[int]:
    """The group's descriptors, leader first; empty if that CPU is offline."""
    fds: list[int] = []
    try:
        for _, code in events:
            fds.append(_perf_event_open(code, directory, cpu, fds[0] if fds else -1, _FLAG_PID_CGROUP))
    except OSError as exc:
        _close_all(fds)
        clock = _refusal(_SOFTWARE_CODES[EventKind.TASK_CLOCK_NS], directory, cpu)
        if clock == errno.ENODEV:
            return []
        kind, code = events[len(fds)]
        alone = bool(fds) and not _refusal(code, directory, cpu)
        raise _explained(exc, cgroup_dir, kind, cpu, alone, clock) from exc
    return fds


def _refusal(code: EventCode, directory: int, cpu: int) -> int:
    """The kernel's answer to this event alone; 0: it is counted."""
    try:
        os.close(_perf_event_open(code, directory, cpu, -1, _FLAG_PID_CGROUP))
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0


def _perf_event_open(code: EventCode, pid: int, cpu: int, group: int, flags: int) -> int:
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open's number on {platform.machine()} is not known")
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
    exc: OSError, cgroup_dir: str, kind: EventKind, cpu: int, alone: bool, clock: int
) -> KernelError:
    """The class and the words for a refusal.

    ``alone``: the event is counted if it is the only one; ``clock``: the answer to the task clock, which needs no PMU.
    """
    operation = f"perf_event_open({kind.label}, CPU {cpu})"
    number = exc.errno or errno.EIO
    if clock == errno.ENOENT:
        # Not "gone", nor about the event: perf does not know the directory as a cgroup.
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
