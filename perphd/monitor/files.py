"""Reads the kernel files of one workload, which stay open, on cgroup v1, v2 and hybrid hosts.

If a file is missing, its readings are Unavailable with the reason; the others are unaffected.

All files of an LRA are read at every sample. Batch workloads are more numerous. Their files about resource use and
waiting for CPU are read at every sample, and the others on the schedule of ``Pace``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from perphd.domain.errors import Gone, KernelError
from perphd.domain.reading import Unavailable
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.fs import KernelFile, KernelFs
from perphd.monitor.meters import (
    BlockIo,
    CpuAcct,
    CpuStat,
    Gauge,
    MemoryStat,
    Meter,
    PressureMeter,
    Readings,
    ThreadList,
)

Identity: TypeAlias = Mapping[str, tuple[int, int]]
"""Device and inode of a workload's directory by mount point, for every hierarchy that contains the directory."""

_CONTROLLERS = ("cpu", "cpuacct", "memory", "io", "pids", "perf_event")

BATCH_LOOK_EVERY: Final = 5
"""Number of batch samples between two readings of a file that is not read at every sample."""
NAP_CORES: Final = 0.001
NAP_PCT: Final = 1.0
"""CPU use (cores) and waiting for CPU (%) below which a batch group with unchanged memory counts as asleep."""


class Pace(Enum):
    """Reading schedule of a batch workload's file: at least every ``BATCH_LOOK_EVERY`` samples.

    CPU time and memory are read at every sample and show a group's activity. A file is skipped only if it was
    unchanged at its last reading, and is read again as soon as the group becomes active.
    """

    ALWAYS = "at every sample"
    RUNNING = "unless the group has neither run nor changed its memory use since the last sample"
    BUSY = "unless the group is nearly idle"
    SELDOM = "every few samples: no decision depends on it, and the last reading stays valid meanwhile"


@dataclass(frozen=True, slots=True)
class _Place:
    """A file that may provide some readings, and the factory of its meter."""

    hierarchy: Hierarchy
    file: str
    meter: Callable[[], Meter]


@dataclass(frozen=True, slots=True)
class _Want:
    """Readings, the files that may provide them (best first), and the reason to report if no file does."""

    fields: tuple[str, ...]
    places: tuple[_Place, ...]
    absent: str
    pace: Pace = Pace.ALWAYS


def sampled_hierarchies(hierarchies: Hierarchies) -> tuple[Hierarchy, ...]:
    """The hierarchies that provide readings, each once, the unified one first."""
    bound = [hierarchies.unified, *(hierarchies.of(name) for name in _CONTROLLERS)]
    return tuple({h.mount: h for h in bound if h is not None}.values())


def identity_of(fs: KernelFs, hierarchies: tuple[Hierarchy, ...], cgroup: str) -> Identity:
    """Identities of the cgroup's directories; empty if it exists in no hierarchy."""
    found: dict[str, tuple[int, int]] = {}
    for hierarchy in hierarchies:
        try:
            found[hierarchy.mount] = fs.identity(hierarchy.path(cgroup))
        except KernelError:
            continue
    return found


class _Source:
    """The file that provides some readings: open, or missing with the reason.

    Many files often stay unchanged (a sleeping group, an idle disk). After two equal contents, the file is no longer
    parsed, and the readings of the second content are repeated. The meter then lags behind; it gets the last content
    when the file changes.

    ``is_still``: the file was unchanged at its last reading.
    """

    __slots__ = (
        "_absent",
        "_at_s",
        "_data",
        "_file",
        "_held",
        "_lags",
        "_meter",
        "_read_s",
        "_want",
        "is_still",
    )

    def __init__(self, want: _Want) -> None:
        self._want = want
        self._file: KernelFile | None = None
        self._meter: Meter | None = None
        self._set_absent(want.absent)
        self._forget()

    def _set_absent(self, reason: str) -> None:
        self._absent: Readings = dict.fromkeys(self._want.fields, Unavailable(reason))

    def _forget(self) -> None:
        self._data: bytes | None = None
        self._at_s = self._read_s = -math.inf
        self._held: Readings | None = None
        self._lags = False
        self.is_still = False

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def fields(self) -> tuple[str, ...]:
        return self._want.fields

    @property
    def pace(self) -> Pace:
        return self._want.pace

    def open(self, fs: KernelFs, cgroup: str) -> bool:
        """Open the first existing file with a new meter, because its counters are new. False if there is none."""
        for place in self._want.places:
            path = place.hierarchy.path(cgroup, place.file)
            try:
                self._file = fs.open(path)
            except Gone:
                reason = f"{path} does not exist"
                if not fs.exists(place.hierarchy.path(cgroup)):
                    reason = f"the cgroup is not in the hierarchy at {place.hierarchy.mount}"
            except KernelError as exc:
                reason = str(exc)
            else:
                self._meter = place.meter()
                self._forget()
                return True
            if place is self._want.places[0]:
                self._set_absent(reason)
        return False

    def take(self, now_s: float, out: Readings) -> bool:
        """Put the readings into ``out``; True if the file vanished since the last time."""
        file, meter = self._file, self._meter
        if file is None or meter is None:
            out.update(self._absent)
            return False
        try:
            data = file.read()
        except Gone as exc:
            self.close()
            self.is_still = False
            self._set_absent(f"{exc.path} vanished")
            out.update(self._absent)
            return True
        except KernelError as exc:
            self.is_still = False
            out.update(dict.fromkeys(self._want.fields, Unavailable(str(exc))))
            return False
        self.is_still = data == self._data and now_s > self._at_s
        if not self.is_still:
            if self._lags and self._data is not None:
                meter.take(self._data, self._at_s, {})
                self._lags = False
            self._held = None
            meter.take(data, now_s, out)
            # Without elapsed time, growth belongs to the next interval, so the next content must not count as
            # unchanged.
            self._data = data if now_s > self._at_s else None
        elif self._held is not None:
            out.update(self._held)
            self._lags = True
        else:
            meter.take(data, now_s, out)
            self._held = {field: out[field] for field in self._want.fields}
        self._at_s = self._read_s = now_s
        return False

    def take_unless(self, asleep: bool, now_s: float, out: Readings, due: bool) -> bool:
        """Like ``take``, but repeat the last readings if the group is ``asleep`` and the file was unchanged.

        ``due``: read the file in any case.
        """
        if asleep and self._held is not None and self._file is not None:
            if not due:
                self._at_s, self._lags = now_s, True
                out.update(self._held)
                return False
            self._at_s = self._read_s  # growth counts over the whole time since the last reading
        return self.take(now_s, out)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class WorkloadFiles:
    """All kept-open files of one workload.

    ``batch_turn``: position of a batch workload in the rotation of occasional readings. None: the workload is an LRA,
    whose files are all read at every sample.
    """

    def __init__(
        self, fs: KernelFs, hierarchies: Hierarchies, cgroup: str, batch_turn: int | None = None
    ) -> None:
        self._fs, self._cgroup = fs, cgroup
        self._sources = [_Source(want) for want in _wants(fs, hierarchies, cgroup)]
        self._turn = batch_turn
        self._new = 2  # the number of readings until rates exist
        self._read_seldom: Readings = {}
        self._always, self._running, self._busy, self._seldom = (
            [
                source
                for source in self._sources
                if (Pace.ALWAYS if batch_turn is None else source.pace) is pace
            ]
            for pace in Pace
        )
        fields = ("cpu_usage_cores", "memory_current_bytes")
        self._usage, self._memory = (
            next(source for source in self._sources if field in source.fields) for field in fields
        )
        self.open_missing()

    def open_missing(self) -> None:
        """Try to open missing files; a controller may have been enabled meanwhile."""
        for source in self._sources:
            if not source.is_open and source.open(self._fs, self._cgroup):
                self._new = 2

    def take(self, now_s: float, out: Readings) -> bool:
        """Put all readings into ``out``; True if any file vanished since the last time."""
        vanished = False
        for source in self._always:
            if source.take(now_s, out):
                vanished = True
        if self._turn is None:
            return vanished
        self._turn += 1
        due = self._turn % BATCH_LOOK_EVERY == 0
        same_memory = self._memory.is_still or not self._memory.is_open
        sleeps = same_memory and self._usage.is_still
        for source in self._running:
            if source.take_unless(sleeps, now_s, out, due):
                vanished = True
        naps = sleeps or (same_memory and _naps(out))
        for source in self._busy:
            if source.take_unless(naps, now_s, out, due):
                vanished = True
        if not due and not self._new:
            out.update(self._read_seldom)
            return vanished
        self._new = max(0, self._new - 1)
        for source in self._seldom:
            if source.take(now_s, out):
                vanished = True
        self._read_seldom = {field: out[field] for source in self._seldom for field in source.fields}
        return vanished

    def gives(self, field: str) -> bool:
        """True if an open file provides this reading."""
        return any(source.is_open and field in source.fields for source in self._sources)

    @property
    def open_fds(self) -> int:
        """Number of open descriptors."""
        return sum(source.is_open for source in self._sources)

    def close(self) -> None:
        """Close all descriptors."""
        for source in self._sources:
            source.close()


def _naps(readings: Readings) -> bool:
    usage, waits = readings["cpu_usage_cores"], readings["cpu_some_pct"]
    if isinstance(usage, Unavailable) or usage >= NAP_CORES:
        return False
    return not isinstance(waits, Unavailable) and waits < NAP_PCT


def _wants(fs: KernelFs, hierarchies: Hierarchies, cgroup: str) -> tuple[_Want, ...]:
    return (
        *_cpu(hierarchies),
        *_pressure(hierarchies),
        *_memory(hierarchies),
        _block_io(hierarchies),
        _threads(fs, hierarchies, cgroup),
    )


def _absent(controller: str) -> str:
    return f"no cgroup hierarchy of this host has the {controller} controller"


def _cpu(hierarchies: Hierarchies) -> tuple[_Want, ...]:
    unified, cpu, accounting = hierarchies.unified, hierarchies.of("cpu"), hierarchies.of("cpuacct")
    if unified is not None and (cpu is None or cpu.version == 2) and accounting is None:
        fields = ("cpu_usage_cores", "cpu_throttled_pct")
        stat = _Place(unified, "cpu.stat", lambda: CpuStat(usage=True, throttling=True))
        return (_Want(fields, (stat,), ""),)
    usage: list[_Place] = []
    if accounting is not None:
        usage.append(_Place(accounting, "cpuacct.usage", CpuAcct))
    if unified is not None:
        usage.append(_Place(unified, "cpu.stat", lambda: CpuStat(usage=True, throttling=False)))
    throttling: tuple[_Place, ...] = ()
    if cpu is not None:
        throttling = (_Place(cpu, "cpu.stat", lambda: CpuStat(usage=False, throttling=True)),)
    return (
        _Want(("cpu_usage_cores",), tuple(usage), _absent("cpuacct")),
        _Want(("cpu_throttled_pct",), throttling, _absent("cpu"), Pace.SELDOM),
    )


def _pressure(hierarchies: Hierarchies) -> tuple[_Want, ...]:
    wants: list[_Want] = []
    for resource, some, full in (
        (
            "cpu",
            "cpu_some_pct",
            None,
        ),  # "full" is of little use for CPU: it counts only time in which every task of the group waits
        ("memory", "memory_some_pct", "memory_full_pct"),
        ("io", "io_some_pct", "io_full_pct"),
    ):
        places: tuple[_Place, ...] = ()
        if hierarchies.unified is not None:
            places = (_Place(hierarchies.unified, f"{resource}.pressure", _pressure_meter(some, full)),)
        fields = (some,) if full is None else (some, full)
        absent = "no cgroup2 tree is mounted: pressure per cgroup exists only there"
        pace = Pace.ALWAYS if resource == "cpu" else Pace.SELDOM  # for batch, CPU pressure shows starvation
        wants.append(_Want(fields, places, absent, pace))
    return tuple(wants)


def _pressure_meter(some: str, full: str | None) -> Callable[[], Meter]:
    return lambda: PressureMeter(some, full)


def _memory(hierarchies: Hierarchies) -> tuple[_Want, ...]:
    memory = hierarchies.of("memory")
    current: tuple[_Place, ...] = ()
    stat: tuple[_Place, ...] = ()
    if memory is not None:
        file = "memory.current" if memory.version == 2 else "memory.usage_in_bytes"
        current = (_Place(memory, file, lambda: Gauge("memory_current_bytes")),)
        stat = (_Place(memory, "memory.stat", MemoryStat.v2 if memory.version == 2 else MemoryStat.v1),)
    return (
        _Want(("memory_current_bytes",), current, _absent("memory")),
        _Want(MemoryStat.fields, stat, _absent("memory"), Pace.BUSY),
    )


def _block_io(hierarchies: Hierarchies) -> _Want:
    io = hierarchies.of("io")
    places: tuple[_Place, ...] = ()
    if io is not None and io.version == 2:
        places = (_Place(io, "io.stat", BlockIo.v2),)
    elif io is not None:
        places = (_Place(io, "blkio.throttle.io_service_bytes_recursive", BlockIo.v1),)
    return _Want(BlockIo.fields, places, _absent("io"), Pace.RUNNING)


def _threads(fs: KernelFs, hierarchies: Hierarchies, cgroup: str) -> _Want:
    places: list[_Place] = []
    pids = hierarchies.of("pids")
    if pids is not None:
        places.append(_Place(pids, "pids.current", lambda: Gauge("threads")))
        if fs.exists(pids.path(cgroup, "pids.current")):
            return _Want(("threads",), tuple(places), "", Pace.BUSY)
    # Thread lists exclude descendants' threads, so they are used only for a cgroup without children.
    for hierarchy, file in ((hierarchies.unified, "cgroup.threads"), (hierarchies.of("cpu"), "tasks")):
        if hierarchy is not None and not _has_children(fs, hierarchy, cgroup):
            places.append(_Place(hierarchy, file, ThreadList))
    return _Want(("threads",), tuple(places), _absent("pids"), Pace.BUSY)


def _has_children(fs: KernelFs, hierarchy: Hierarchy, cgroup: str) -> bool:
    directory = hierarchy.path(cgroup)
    try:
        return any(fs.exists(f"{directory}/{name}/cgroup.procs") for name in fs.subdirectories(directory))
    except KernelError:
        return False
