"""The simulated machine's shape, and its files in /proc and /sys outside the cgroup tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Core, L3Domain, NumaNode, Topology
from perphd.sim.kernel import Directory, formats
from perphd.sim.pressure import PressureState

CGROUP_ROOT = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the host is made of: one L3 cache and one memory node a socket.

    CPUs are numbered as x86 firmware does: first one thread of every core, then the others.
    """

    sockets: int = 1
    cores_per_socket: int = 8
    threads_per_core: int = 1
    memory_bytes: int = 16 << 30
    l3_bytes: int = 16 << 20

    @property
    def cores(self) -> int:
        """Physical cores of the whole host."""
        return self.sockets * self.cores_per_socket

    @property
    def cpus(self) -> int:
        """Logical CPUs of the whole host."""
        return self.cores * self.threads_per_core

    def siblings(self, core: int) -> CpuSet:
        """The CPUs of the n-th physical core of the host."""
        return CpuSet.of(core + thread * self.cores for thread in range(self.threads_per_core))

    def socket_cpus(self, socket: int) -> CpuSet:
        """The CPUs of one socket: of one L3 cache and one memory node."""
        first = socket * self.cores_per_socket
        cpus = CpuSet()
        for core in range(first, first + self.cores_per_socket):
            cpus = cpus | self.siblings(core)
        return cpus

    @property
    def online(self) -> CpuSet:
        """Every CPU."""
        return CpuSet((1 << self.cpus) - 1)

    @property
    def nodes(self) -> CpuSet:
        """Every memory node."""
        return CpuSet((1 << self.sockets) - 1)

    def topology(self) -> Topology:
        """The same as the files say, as a value."""
        per_socket = self.memory_bytes // self.sockets
        sockets = range(self.sockets)
        return Topology(
            cores=tuple(
                Core(core // self.cores_per_socket, core % self.cores_per_socket, self.siblings(core))
                for core in range(self.cores)
            ),
            l3_domains=tuple(L3Domain(s, self.socket_cpus(s), self.l3_bytes) for s in sockets),
            nodes=tuple(NumaNode(s, self.socket_cpus(s), per_socket // 1024 * 1024) for s in sockets),
            online=self.online,
            memory_bytes=self.memory_bytes // 1024 * 1024,
        )


def add_processors(root: Directory, machine: Machine) -> None:
    """/sys/devices/system/{cpu,node}."""
    system = root.make("/sys/devices/system/cpu")
    everything = f"{machine.online}\n"
    for name, text in (
        ("online", everything),
        ("possible", everything),
        ("present", everything),
        ("offline", "\n"),
        ("isolated", "\n"),
        ("kernel_max", f"{machine.cpus - 1}\n"),
        ("smt/active", f"{int(machine.threads_per_core > 1)}\n"),
        ("smt/control", "on\n" if machine.threads_per_core > 1 else "notsupported\n"),
    ):
        folder, _, last = name.rpartition("/")
        (system.make(folder) if folder else system).add(last, text)
    for cpu in range(machine.cpus):
        _add_cpu(system.make(f"cpu{cpu}"), machine, cpu)
    nodes = root.make("/sys/devices/system/node")
    for name in ("online", "possible", "has_cpu", "has_memory"):
        nodes.add(name, f"{machine.nodes}\n")
    for node in range(machine.sockets):
        here = nodes.make(f"node{node}")
        kib = machine.memory_bytes // machine.sockets // 1024
        here.add("cpulist", f"{machine.socket_cpus(node)}\n")
        here.add("distance", " ".join("10" if n == node else "21" for n in range(machine.sockets)) + "\n")
        here.add("meminfo", f"Node {node} MemTotal:       {kib} kB\n")


def _add_cpu(directory: Directory, machine: Machine, cpu: int) -> None:
    core = cpu % machine.cores
    socket = core // machine.cores_per_socket
    siblings, package = f"{machine.siblings(core)}\n", f"{machine.socket_cpus(socket)}\n"
    topology = directory.make("topology")
    topology.add("core_id", f"{core % machine.cores_per_socket}\n")
    topology.add("physical_package_id", f"{socket}\n")
    for name in ("thread_siblings_list", "core_cpus_list"):
        topology.add(name, siblings)
    for name in ("package_cpus_list", "core_siblings_list"):
        topology.add(name, package)
    caches = (
        (0, 1, "Data", 32 << 10, siblings),
        (2, 2, "Unified", 1 << 20, siblings),
        (3, 3, "Unified", machine.l3_bytes, package),
    )
    for index, level, kind, size, shared in caches:
        cache = directory.make(f"cache/index{index}")
        for name, text in (
            ("level", f"{level}\n"),
            ("type", f"{kind}\n"),
            ("size", f"{size >> 10}K\n"),
            ("shared_cpu_list", shared),
            ("id", f"{socket if level == 3 else core}\n"),
        ):
            cache.add(name, text)
    if cpu:
        directory.add("online", "1\n")


def add_proc(
    root: Directory,
    machine: Machine,
    own_cgroup: str,
    pressure: dict[str, PressureState],
    memory_used_bytes: Callable[[], float],
) -> None:
    """/proc as far as perphd reads it. ``own_cgroup``: where the reader itself lives."""

    def trigger(data: bytes) -> None:
        formats.check_trigger(data[:-1])  # /proc/pressure drops the last byte of a write

    def meminfo() -> str:
        total = machine.memory_bytes >> 10
        free = max(0, total - (int(memory_used_bytes()) >> 10))
        return (
            f"MemTotal:       {total} kB\nMemFree:        {free} kB\nMemAvailable:   {free} kB\n"
            "SwapTotal:             0 kB\nSwapFree:              0 kB\n"
        )

    proc = root.make("/proc")
    proc.add("meminfo", meminfo)
    proc.add(
        "filesystems", "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tcgroup\nnodev\tcgroup2\n\text4\n"
    )
    for resource, state in pressure.items():
        proc.make("pressure").add(resource, state.text, trigger)
    own = proc.make("self")
    own.add(
        "mounts",
        "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
        "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        f"cgroup2 {CGROUP_ROOT} cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate,memory_recursiveprot 0 0\n",
    )
    own.add("cgroup", f"0::{own_cgroup}\n")
    own.add("schedstat", "12000000 340000 21\n")
    own.add("limits", "Max open files            1024                 524288               files     \n")
    own.add(
        "status",
        "Name:\tperphd\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"
        "CapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n"
        f"CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nCpus_allowed_list:\t{machine.online}\n",
    )
    proc.make("sys/kernel").add("perf_event_paranoid", "2\n")
    proc.make("sys/kernel").add("osrelease", "6.1.0-sim\n")
