"""Writes the simulated machine's files in /proc and /sys outside the cgroup tree."""

from __future__ import annotations

from collections.abc import Callable

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel import Directory, formats
from perphd.sim.node.machine import Machine
from perphd.sim.pressure import PressureState

__all__ = ["CGROUP_ROOT", "Machine", "add_proc", "add_processors"]

CGROUP_ROOT = "/sys/fs/cgroup"


def add_processors(root: Directory, machine: Machine, online: Callable[[], CpuSet]) -> None:
    """Write /sys/devices/system/{cpu,node}. ``online``: the CPUs that are online."""
    system = root.make("/sys/devices/system/cpu")
    everything = f"{machine.online}\n"
    files: tuple[tuple[str, str | Callable[[], str]], ...] = (
        ("online", lambda: f"{online()}\n"),
        ("possible", everything),
        ("present", everything),
        ("offline", lambda: f"{machine.online - online()}\n"),
        ("isolated", "\n"),
        ("kernel_max", f"{machine.cpus - 1}\n"),
        ("smt/active", f"{int(machine.threads_per_core > 1)}\n"),
        ("smt/control", "on\n" if machine.threads_per_core > 1 else "notsupported\n"),
    )
    for name, text in files:
        folder, _, last = name.rpartition("/")
        (system.make(folder) if folder else system).add(last, text)
    show_cpus(root, machine, online)
    nodes = root.make("/sys/devices/system/node")
    for name in ("online", "possible", "has_cpu", "has_memory"):
        nodes.add(name, f"{machine.nodes}\n")
    for node in range(machine.sockets):
        here = nodes.make(f"node{node}")
        kib = machine.memory_bytes // machine.sockets // 1024
        here.add("cpulist", f"{machine.socket_cpus(node)}\n")
        here.add("distance", " ".join("10" if n == node else "21" for n in range(machine.sockets)) + "\n")
        here.add("meminfo", f"Node {node} MemTotal:       {kib} kB\n")


def show_cpus(root: Directory, machine: Machine, online: Callable[[], CpuSet]) -> None:
    """Update the directories of all CPUs: an offline CPU has neither topology nor caches."""
    system = root.make("/sys/devices/system/cpu")
    for cpu in range(machine.cpus):
        directory = system.make(f"cpu{cpu}")
        if cpu:
            directory.add("online", lambda cpu=cpu: f"{int(cpu in online())}\n")  # type: ignore[misc]
        there = "topology" in directory.children
        if cpu in online() and not there:
            _add_cpu(directory, machine, cpu, online)
        elif cpu not in online() and there:
            directory.remove("topology")
            directory.remove("cache")


def _add_cpu(directory: Directory, machine: Machine, cpu: int, online: Callable[[], CpuSet]) -> None:
    core = cpu % machine.cores
    socket = core // machine.cores_per_socket

    def siblings() -> str:
        return f"{machine.siblings(core) & online()}\n"

    def package() -> str:
        return f"{machine.socket_cpus(socket) & online()}\n"

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
            ("id", f"{socket if level == 3 else core}\n"),
        ):
            cache.add(name, text)
        cache.add("shared_cpu_list", shared)


def add_proc(
    root: Directory,
    machine: Machine,
    own_cgroup: str,
    pressure: dict[str, PressureState],
    memory_used_bytes: Callable[[], float],
    more_mounts: Callable[[], str] = str,
) -> None:
    """Write the files of /proc that perphd reads.

    ``own_cgroup``: path of the reader's own control group. ``more_mounts``: returns further lines of /proc/mounts.
    """

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
        lambda: (
            "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
            "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
            f"cgroup2 {CGROUP_ROOT} cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate,memory_recursiveprot 0 0\n"
            f"{more_mounts()}"
        ),
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
