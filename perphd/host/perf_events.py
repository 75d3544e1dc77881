"""Performance counters of a cgroup through perf_event_open(2): hardware ones where there is a PMU, else software.

One group of events per workload and CPU, every member opened with the cgroup's directory (a member opened
without it counts the whole CPU). Opening goes through ctypes; reading a group is one read(2) and one unpack.
See perf_event_open(2) and tools/perf/design.txt.
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
from typing import Final, NamedTuple, Protocol, Self

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Full, Gone, KernelError, Unsupported, kernel_error
from perphd.domain.reading import Reading, Unavailable
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.descriptors import raise_limit

_HARDWARE: Final = 0
_SOFTWARE: Final = 1


class EventKind(Enum):
    """What can be counted; the value is the kernel's (type, config)."""

    INSTRUCTIONS = (_HARDWARE, 1)
    CYCLES = (_HARDWARE, 0)
    LLC_REFERENCES = (_HARDWARE, 2)
    LLC_MISSES = (_HARDWARE, 3)
    TASK_CLOCK_NS = (_SOFTWARE, 1)
    CONTEXT_SWITCHES = (_SOFTWARE, 3)
    CPU_MIGRATIONS = (_SOFTWARE, 4)
    PAGE_FAULTS = (_SOFTWARE, 2)

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python, at every look-up

    @property
    def is_hardware(self) -> bool:
        """True if it needs a PMU."""
        return self.value[0] == _HARDWARE

    @property
    def label(self) -> str:
        """Its name for people, e.g. ``llc-misses``."""
        return self.name.lower().replace("_", "-")


HARDWARE_EVENTS: Final = tuple(kind for kind in EventKind if kind.is_hardware)
SOFTWARE_EVENTS: Final = tuple(kind for kind in EventKind if not kind.is_hardware)


class EventGroup(Protocol):
    """Open counters of one workload. All its events are counted at the same moments."""

    def read(self) -> Mapping[EventKind, Reading]:
        """Counts since opening, summed over CPUs, scaled for multiplexing; never falling from call to call.

        May be the very object of the call before where nothing was counted meanwhile.

        Unavailable while no counter ran in the interval since the last call although the workload did.
        """

    @property
    def running_ratio(self) -> float:
        """Share (0..1) of the last interval in which the counters really ran; 1.0: nothing was estimated."""

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
_CGROUPS_UNSEEN = (
    "perf does not see cgroups until something was once written to the root's cgroup.subtree_control "
    "(systemd always does)"
)
_NOT_PERMITTED = (
    "needs CAP_PERFMON (CAP_SYS_ADMIN if kernel.perf_event_paranoid is above 2), or kernel.perf_event_paranoid at 0 "
    "or below"
)

_libc = ctypes.CDLL(None, use_errno=True)


def perf_hierarchy(hierarchies: Hierarchies) -> Hierarchy | None:
    """The tree whose directories name cgroups to perf: v1's perf_event if mounted, else the unified one."""
    return hierarchies.of("perf_event") or hierarchies.unified


def open_group(cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind]) -> PerfEventGroup:
    """Open these events as one group on each of these CPUs, for the tasks of one cgroup.

    Args:
        cgroup_dir: the cgroup's directory in the hierarchy that perf_event lives in (``perf_hierarchy``).
        cpus: usually the online ones; those that are offline by now are left out (``lost_cpus``).
        events: in this order; without repetition. Hardware events first lets the kernel group both kinds.

    Raises:
        ValueError: no events, or no CPUs.
        Full: more descriptors are needed than RLIMIT_NOFILE allows, even after raising the soft limit.
        Unsupported: the kernel does not know one of the events here (no PMU).
        Denied: perf_event_paranoid and capabilities do not allow it.
        Gone: the cgroup does not exist, or none of the CPUs is online.
    """
    if not events or not cpus or len(set(events)) != len(events):
        raise ValueError("open_group wants at least one CPU and at least one event, none of them twice")
    reserve_fds(len(cpus) * len(events))
    try:
        directory = os.open(cgroup_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise kernel_error(exc, cgroup_dir, "open") from exc
    opened: dict[int, list[int]] = {}
    try:
        for cpu in cpus:
            fds = _open_on_cpu(directory, cgroup_dir, cpu, events)
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


def probe_events(cgroup_dir: str) -> EventSupport:
    """Try every event once, alone, on one CPU of this cgroup, and say which work and why the others do not."""
    cpu = CpuSet.of([min(os.sched_getaffinity(0))])
    supported: list[EventKind] = []
    missing: dict[EventKind, KernelError] = {}
    for kind in EventKind:
        try:
            open_group(cgroup_dir, cpu, (kind,)).close()
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
    """Counters of one cgroup on real CPUs; see ``EventGroup`` for what the public face means.

    The kernel's totals are never scaled as such: that would let a sum fall when the share of running time
    changes. Each interval's growth is scaled by that interval's enabled/running time, and added up.
    """

    def __init__(
        self, events: tuple[EventKind, ...], fds: Mapping[int, list[int]], lost_cpus: CpuSet
    ) -> None:
        self._events = events
        self._cpus = [_CpuCounters(cpu, own, len(events)) for cpu, own in fds.items()]
        self._lost = lost_cpus
        self._totals = [0.0] * len(events)
        self._ratio = 1.0
        self._counts: Mapping[EventKind, Reading] = {}

    def read(self) -> Mapping[EventKind, Reading]:
        """Counts since opening; see ``EventGroup.read``."""
        enabled = running = moved = 0
        gone: list[_CpuCounters] = []
        for counters in self._cpus:
            grown = counters.advance()
            if grown is None:
                gone.append(counters)
                continue
            if grown is counters.still:
                continue
            moved += 1
            enabled += grown.enabled
            running += grown.running
            for index, count in enumerate(grown.counts):
                self._totals[index] += count
        for counters in gone:
            counters.close()
            self._cpus.remove(counters)
            self._lost = self._lost | CpuSet.of([counters.cpu])
        self._ratio = min(running / enabled, 1.0) if enabled else 1.0
        if self._counts and not moved and not gone:
            return self._counts
        self._counts = {}
        if not self._cpus:
            return dict.fromkeys(self._events, Unavailable("the counters were lost with their CPUs"))
        if enabled and not running:
            reason = Unavailable("the counters did not run in this interval: more events than counters")
            return dict.fromkeys(self._events, reason)
        self._counts = dict(zip(self._events, self._totals, strict=True))
        return self._counts

    @property
    def running_ratio(self) -> float:
        """Share of the last interval in which the counters ran."""
        return self._ratio

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
    """What one CPU added since its last reading: scaled counts, and the two times in ns."""

    counts: tuple[float, ...]
    enabled: int
    running: int


class _CpuCounters:
    """One event group on one CPU, with what was last read of it."""

    __slots__ = ("_data", "_last", "_size", "_unpack", "cpu", "fds", "still")

    def __init__(self, cpu: int, fds: list[int], events: int) -> None:
        self.cpu, self.fds = cpu, fds
        # Number of events, time enabled, time running, counts; signed, so that a wrapped count shows as such.
        layout = struct.Struct(f"={3 + events}q")
        self._size, self._unpack = layout.size, layout.unpack
        self._last: tuple[int, ...] = (events,) + (0,) * (2 + events)
        self._data = b""
        self.still = _Growth((0.0,) * events, 0, 0)
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
        if now[0] != self._last[0]:
            return None
        grown = self.absorb(now)
        self._data = data if self._last is now else b""  # a mark that was kept is to be compared again
        return grown

    def absorb(self, now: tuple[int, ...]) -> _Growth:
        """Take a reading in (number, enabled, running, counts...) and give what it adds, scaled."""
        last = self._last
        enabled, running = now[1] - last[1], now[2] - last[2]
        counts = [new - old for new, old in zip(now[3:], last[3:], strict=True)]
        if enabled < 0 or running < 0 or min(counts) < 0:
            # Never seen of a healthy kernel; after a reset the next interval is sound again.
            self._last = now
            return _Growth((0.0,) * len(counts), 0, 0)
        if running == 0 and enabled > 0:
            # Not scheduled at all: keep the old mark, so that the next interval with a count covers this one.
            return _Growth((0.0,) * len(counts), enabled, 0)
        self._last = now
        scale = enabled / running if 0 < running < enabled else 1.0
        return _Growth(tuple(count * scale for count in counts), enabled, running)

    def close(self) -> None:
        _close_all(self.fds)
        self.fds = []


def _open_on_cpu(directory: int, cgroup_dir: str, cpu: int, events: Sequence[EventKind]) -> list[int]:
    """The group's descriptors, leader first; empty if that CPU is offline."""
    fds: list[int] = []
    try:
        for kind in events:
            fds.append(_perf_event_open(kind, directory, cpu, fds[0] if fds else -1, _FLAG_PID_CGROUP))
    except OSError as exc:
        _close_all(fds)
        if exc.errno == errno.ENODEV and not fds:
            return []
        raise _explained(exc, cgroup_dir, events[len(fds)], cpu) from exc
    return fds


def _perf_event_open(kind: EventKind, pid: int, cpu: int, group: int, flags: int) -> int:
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open's number on {platform.machine()} is not known")
    event_type, config = kind.value
    attr = _Attr(
        type=event_type,
        size=ctypes.sizeof(_Attr),
        config=config,
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


def _explained(exc: OSError, cgroup_dir: str, kind: EventKind, cpu: int) -> KernelError:
    """The class and the words for a refusal."""
    operation = f"perf_event_open({kind.label}, CPU {cpu})"
    if exc.errno == errno.ENOENT:  # not "gone": the kernel has no such event, or no cgroups in perf
        advice = _CGROUPS_UNSEEN if _counts_own_task(kind) else _NO_PMU
        return Unsupported(cgroup_dir, operation, errno.ENOENT, advice=advice)
    advice = ""
    if exc.errno in (errno.EACCES, errno.EPERM):
        advice = _NOT_PERMITTED
    elif exc.errno == errno.EBADF:
        advice = "the directory is not a cgroup of the hierarchy that perf uses"
    return kernel_error(exc, cgroup_dir, operation, advice=advice)


def _counts_own_task(kind: EventKind) -> bool:
    try:
        os.close(_perf_event_open(kind, pid=0, cpu=-1, group=-1, flags=0))
    except OSError:
        return False
    return True


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
