"""Accounts for the use of the whole host: CPU time at every tick, everything else once a second or less often.

Callers pass CPU times and the samples of declared workloads; ``host_cpu.divide`` divides the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.host_account import NO_GROUP, GroupUse, HostAccount
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, value_or
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.containers import UNKNOWN_POD, ContainerNames
from perphd.host.disk_use import read_disks
from perphd.host.fs import KernelFile, KernelFs
from perphd.monitor.host_cpu import CpuTimes, divide
from perphd.monitor.meters import BlockIo, Gauge, Meter, PressureMeter, Readings
from perphd.monitor.parse import line_needle, values_of
from perphd.monitor.rates import Rate
from perphd.monitor.undeclared import UndeclaredGroups

PRESSURE_S: Final = 1.0
TOTALS_S: Final = 5.0
"""Seconds between readings of the host's memory, disks and network."""
ROOT_S: Final = 60.0
SHOWN: Final = 16
"""Number of undeclared groups that are listed by name. The use of all others counts as the group ``/``."""
LEAST_CORES: Final = 0.005
"""CPU use, in cores, below which a group is not named."""
DETAILED: Final = 6
"""Number of named groups whose memory, disk use and names of pods are read."""
KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD, a flag in /proc/PID/stat. The command line is not used: reading it may wait for the memory lock."""
MOST_PROCESSES: Final = 512
"""Number of processes in no group above which perphd examines none and assumes that some are not kernel threads."""
_MEMORY: Final = (line_needle("MemTotal:"), line_needle("MemAvailable:"))
_NO_TOTALS: Final[Readings] = {
    "memory_total_bytes": NOT_MEASURED,
    "memory_available_bytes": NOT_MEASURED,
    "disk_bytes_per_s": NOT_MEASURED,
    "network_bytes_per_s": NOT_MEASURED,
}


class HostAccounts:
    """Computes the account of the whole host (``HostAccount``) at every tick."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._groups = UndeclaredGroups(fs, hierarchies)
        self._details = _Details(fs, hierarchies)
        self._pressure = _HostPressure(fs)
        self._totals: Readings = dict(_NO_TOTALS)
        self._disk, self._network = Rate(), Rate()
        self._totals_s: float | None = None
        self._root_s: float | None = None
        self._rest_is_kernel = True
        self._last_s: float | None = None

    def read(
        self,
        now_s: float,
        times: CpuTimes | None,
        specs: Sequence[WorkloadSpec],
        samples: Mapping[str, Sample],
    ) -> HostAccount | None:
        """The account of the time since the last call; None if there was no interval.

        Args:
            now_s: monotonic seconds.
            times: use of the host's CPUs meanwhile, as read by ``HostLoad``.
            specs: the declared workloads.
            samples: their samples of this tick, by name.
        """
        last_s, self._last_s = self._last_s, now_s
        if times is None or last_s is None or now_s <= last_s:
            return None
        use = {spec.name: _cores(samples.get(spec.name)) for spec in specs}
        lras = sum(use[spec.name] for spec in specs if spec.kind is Kind.LRA)
        batch = sum(use[spec.name] for spec in specs if spec.kind is Kind.BATCH)
        declared = {spec.cgroup: use[spec.name] for spec in specs if spec.cgroup}
        ticks = times.tasks + times.interrupts + times.steal + times.idle
        capacity = float(times.cpus)
        used = capacity * times.tasks / ticks - lras - batch if ticks > 0 else 0.0
        groups = self._groups.read(now_s, declared, used, capacity)
        named = _greatest(groups)
        if used - sum(groups.values()) >= LEAST_CORES and _is_due(self._root_s, now_s, ROOT_S):
            self._root_s, self._rest_is_kernel = now_s, self._only_kernel_threads()
        cpu, shares = divide(times, lras, batch, named, self._rest_is_kernel)
        if _is_due(self._totals_s, now_s, TOTALS_S):
            self._totals_s = now_s
            self._read_totals(now_s)
        details = self._details.read(now_s, [group for group in shares if group != NO_GROUP][:DETAILED])
        undeclared = sorted(
            (
                GroupUse(group, cores, *details.get(group, ()))
                for group, cores in shares.items()
                if cores > 0.0
            ),
            key=lambda group: -group.cpu_cores,
        )
        return HostAccount(
            now_s, now_s - last_s, cpu, tuple(undeclared), **self._pressure.read(now_s), **self._totals
        )

    def _only_kernel_threads(self) -> bool:
        """True if every process outside all groups is a kernel thread, as far as can be read."""
        tree = self._hierarchies.of("cpuacct") or self._hierarchies.unified
        if tree is None:
            return True
        try:
            pids = self._fs.read(tree.path("/", "cgroup.procs")).split()
        except KernelError:
            return True
        if len(pids) > MOST_PROCESSES:
            return False
        return not any(self._is_user_process(pid.decode(errors="replace")) for pid in pids)

    def _is_user_process(self, pid: str) -> bool:
        try:
            fields = self._fs.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            return not int(fields[6]) & KERNEL_THREAD
        except (KernelError, IndexError, ValueError):
            return False

    def _read_totals(self, now_s: float) -> None:
        total, available_kb = _numbers(self._fs, "/proc/meminfo", _MEMORY)
        self._totals["memory_total_bytes"] = total
        self._totals["memory_available_bytes"] = available_kb
        self._totals["disk_bytes_per_s"] = _rate(self._disk, _disk_bytes(self._fs), now_s)
        self._totals["network_bytes_per_s"] = _rate(self._network, _network_bytes(self._fs), now_s)

    @property
    def open_fds(self) -> int:
        """Number of open descriptors."""
        return self._groups.open_fds + self._pressure.open_fds

    def close(self) -> None:
        """Close all descriptors."""
        self._groups.close()
        self._pressure.close()


class _HostPressure:
    """Pressure of the host from /proc/pressure, with its files kept open."""

    _FILES: Final = (
        ("cpu", "cpu_some_pct", None),
        ("memory", "memory_some_pct", "memory_full_pct"),
        ("io", "io_some_pct", None),
    )

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._files: dict[str, KernelFile] = {}
        self._meters: dict[str, Meter] = {name: PressureMeter(some, full) for name, some, full in self._FILES}
        self._held: Readings = {}
        self._read_s: float | None = None

    def read(self, now_s: float) -> Readings:
        """The host's stall shares over the time since the last reading."""
        if not _is_due(self._read_s, now_s, PRESSURE_S):
            return self._held
        self._read_s = now_s
        for name, meter in self._meters.items():
            path = f"/proc/pressure/{name}"
            try:
                file = self._files.get(name)
                if file is None:
                    file = self._files[name] = self._fs.open(path)
                meter.take(file.read(), now_s, self._held)
            except KernelError as exc:
                self._held.update(dict.fromkeys(meter.fields, Unavailable(str(exc))))
        return self._held

    @property
    def open_fds(self) -> int:
        return len(self._files)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _Details:
    """Memory and disk use of the largest undeclared groups, and their pods' names, read every few seconds."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs = fs
        self._memory, self._io = hierarchies.of("memory"), hierarchies.of("io")
        self._meters: dict[str, BlockIo] = {}
        self._held: dict[str, tuple[Reading, Reading, str]] = {}
        self._read_s: float | None = None

    def read(self, now_s: float, groups: Sequence[str]) -> Mapping[str, tuple[Reading, Reading, str]]:
        """Last readings by group: bytes of memory, bytes per second of disk traffic, and the name of its pod."""
        if not _is_due(self._read_s, now_s, TOTALS_S):
            return self._held
        self._read_s = now_s
        self._meters = {group: self._meters.get(group) or self._meter() for group in groups}
        names = ContainerNames(self._fs)
        self._held = {
            group: (self._memory_of(group, now_s), self._io_of(group, now_s), self._name_of(group, names))
            for group in groups
        }
        return self._held

    def _name_of(self, group: str, names: ContainerNames) -> str:
        """The name of a pod or container; files are read only until it is known."""
        known = self._held[group][2] if group in self._held else UNKNOWN_POD
        return names.label(group) if known.startswith(UNKNOWN_POD) else known

    def _meter(self) -> BlockIo:
        return BlockIo.v2() if self._io is None or self._io.version == 2 else BlockIo.v1()

    def _memory_of(self, group: str, now_s: float) -> Reading:
        if self._memory is None:
            return NOT_MEASURED
        file = "memory.current" if self._memory.version == 2 else "memory.usage_in_bytes"
        out = _taken(self._fs, self._memory.path(group, file), Gauge("memory_current_bytes"), now_s)
        return out["memory_current_bytes"]

    def _io_of(self, group: str, now_s: float) -> Reading:
        if self._io is None:
            return NOT_MEASURED
        file = "io.stat" if self._io.version == 2 else "blkio.throttle.io_service_bytes_recursive"
        out = _taken(self._fs, self._io.path(group, file), self._meters[group], now_s)
        read, written = out["read_bytes_per_s"], out["write_bytes_per_s"]
        if isinstance(read, Unavailable):
            return read
        return written if isinstance(written, Unavailable) else read + written


def _taken(fs: KernelFs, path: str, meter: Meter, now_s: float) -> Readings:
    out: Readings = {}
    try:
        meter.take(fs.read(path), now_s, out)
    except KernelError as exc:
        out.update(dict.fromkeys(meter.fields, Unavailable(str(exc))))
    return out


def _cores(sample: Sample | None) -> float:
    return 0.0 if sample is None else value_or(sample.cpu_usage_cores, 0.0)


def _is_due(last_s: float | None, now_s: float, every_s: float) -> bool:
    """True if the last reading is about ``every_s`` old (ticks jitter by a tenth)."""
    return last_s is None or not 0.0 <= now_s - last_s < 0.9 * every_s


def _greatest(groups: Mapping[str, float]) -> dict[str, float]:
    """The groups to name, by CPU use, descending."""
    names = sorted(
        (group for group, cores in groups.items() if cores >= LEAST_CORES), key=lambda g: -groups[g]
    )
    return {group: groups[group] for group in names[:SHOWN]}


def _rate(rate: Rate, total: Reading, now_s: float) -> Reading:
    return total if isinstance(total, Unavailable) else rate.update(total, now_s)


def _numbers(fs: KernelFs, path: str, needles: tuple[bytes, ...]) -> list[Reading]:
    """Values of the needed lines of a file such as /proc/meminfo, in bytes."""
    try:
        lines = [line.split()[:2] for line in fs.read(path).split(b"\n") if line]
    except KernelError as exc:
        return [Unavailable(str(exc))] * len(needles)
    data = b"".join(b"\n" + b" ".join(line) for line in lines)
    values = values_of(data, needles)
    return [Unavailable(f"{path} lacks a line") if v is None else v * 1024.0 for v in values]


def _disk_bytes(fs: KernelFs) -> Reading:
    """Bytes read and written by whole disks since boot, without partitions and devices layered on disks."""
    try:
        disks = read_disks(fs)
        return float(sum(disk.moved_bytes for disk in disks.values()))
    except (KernelError, ValueError) as exc:
        return Unavailable(f"/proc/diskstats: {exc}")


def _network_bytes(fs: KernelFs) -> Reading:
    """Bytes received and sent since boot by all network devices except loopback."""
    total = 0
    try:
        for line in fs.read("/proc/net/dev").split(b"\n")[2:]:
            name, _, counts = line.partition(b":")
            fields = counts.split()
            if len(fields) > 8 and name.strip() != b"lo":
                total += int(fields[0]) + int(fields[8])
    except (KernelError, ValueError) as exc:
        return Unavailable(f"/proc/net/dev: {exc}")
    return float(total)
