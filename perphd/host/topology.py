"""The host's processors, caches and memory nodes, read from sysfs into ``perphd.domain.topology``.

Reads, never writes. Files that a kernel or hypervisor omits (cache ids, NUMA directories, the topology of
offline CPUs) are tolerated; existing content is validated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone, KernelError, ParseError
from perphd.domain.topology import Core, L3Domain, NumaNode, Topology
from perphd.domain.units import parse_size_bytes
from perphd.host.fs import KernelFile, KernelFs, read_text

CPU_ROOT = "/sys/devices/system/cpu"
NODE_ROOT = "/sys/devices/system/node"
MEMINFO = "/proc/meminfo"

_CPU_DIRECTORY = re.compile(r"cpu([0-9]{1,4})")
_NODE_DIRECTORY = re.compile(r"node([0-9]{1,5})")
_CACHE_DIRECTORY = re.compile(r"index[0-9]{1,3}")
_MEM_TOTAL = re.compile(r"^(?:Node +[0-9]+ +)?MemTotal: +([0-9]{1,16}) kB$", re.MULTILINE)
_INTEGER = re.compile(r"-?[0-9]{1,18}")

_T = TypeVar("_T")


def read_topology(fs: KernelFs) -> Topology:
    """Read the whole topology once.

    Memory-only NUMA nodes are kept with an empty CPU set. A host without NUMA nodes is one node, a host
    without a visible L3 cache has no L3 domain. ``offline``: CPUs that exist and are switched off, but not empty
    sockets into which a hypervisor could plug CPUs.

    Raises:
        KernelError: the list of CPUs or the host's memory size is unreadable.
        ParseError: a file is not in the kernel's format; the text names the file.
    """
    online = _online(fs)
    present = _parsed(fs, f"{CPU_ROOT}/present", CpuSet.parse)
    if present is None:
        present = _parsed(fs, f"{CPU_ROOT}/possible", CpuSet.parse) or online
    isolated = _parsed(fs, f"{CPU_ROOT}/isolated", CpuSet.parse) or CpuSet()
    nodes = _nodes(fs, online)
    memory_bytes = _memory_bytes(fs, nodes)
    if not nodes:
        nodes = (NumaNode(0, online, memory_bytes),)
    return Topology(
        cores=_cores(fs, online),
        l3_domains=_l3_domains(fs, online),
        nodes=nodes,
        online=online,
        offline=present - online,
        isolated=isolated,
        memory_bytes=memory_bytes,
    )


class Processors:
    """Detects CPU hotplug. One file is kept open and read once per check."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._file: KernelFile | None = None
        self._last = self._online()

    def look(self) -> Topology | None:
        """The new topology if other CPUs are online than at the last check; None if unchanged or unreadable."""
        now = self._online()
        if now is None or now == self._last:
            return None
        try:
            found = read_topology(self._fs)
        except (KernelError, ParseError):
            return None  # a hotplug operation is in progress; the next check retries
        self._last = now
        return found

    def _online(self) -> bytes | None:
        try:
            if self._file is None:
                self._file = self._fs.open(f"{CPU_ROOT}/online")
            return self._file.read()
        except KernelError:
            return None

    def close(self) -> None:
        """Close the descriptor."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _online(fs: KernelFs) -> CpuSet:
    path = f"{CPU_ROOT}/online"
    online = _parsed(fs, path, CpuSet.parse)
    if online is None:  # kernels without CPU hotplug may lack the file: all listed CPUs are online
        online = CpuSet.of(number for number, _ in _numbered(fs, CPU_ROOT, _CPU_DIRECTORY))
    if not online:
        raise Gone(path, "read", 2, advice="mount sysfs on /sys")
    return online


def _cores(fs: KernelFs, online: CpuSet) -> tuple[Core, ...]:
    """Group CPUs by their sibling lists.

    core_id is not used, because it repeats over sockets and on some hosts over dies.
    """
    cores: list[Core] = []
    assigned = CpuSet()
    for cpu in online:
        if cpu in assigned:
            continue
        base = f"{CPU_ROOT}/cpu{cpu}/topology"
        siblings = _parsed(fs, f"{base}/thread_siblings_list", CpuSet.parse)
        if siblings is None:
            siblings = _parsed(fs, f"{base}/core_cpus_list", CpuSet.parse) or CpuSet()
        cpus = ((siblings & online) | CpuSet.of([cpu])) - assigned
        assigned = assigned | cpus
        # Some hypervisors and boards return -1 for "unknown".
        socket = max(_parsed(fs, f"{base}/physical_package_id", _integer) or 0, 0)
        number = _parsed(fs, f"{base}/core_id", _integer)
        cores.append(Core(socket, cpu if number is None or number < 0 else number, cpus))
    return tuple(sorted(_unique(cores), key=lambda core: (core.socket, core.core)))


def _unique(cores: list[Core]) -> list[Core]:
    """In sockets with repeated core ids, number all cores by their first CPU instead."""
    times = Counter((core.socket, core.core) for core in cores)
    repeating = {socket for (socket, _), count in times.items() if count > 1}
    return [
        Core(core.socket, next(iter(core.cpus)), core.cpus) if core.socket in repeating else core
        for core in cores
    ]


def _l3_domains(fs: KernelFs, online: CpuSet) -> tuple[L3Domain, ...]:
    domains: dict[int, L3Domain] = {}
    seen = CpuSet()
    for cpu in online:
        if cpu in seen:
            continue
        base = f"{CPU_ROOT}/cpu{cpu}/cache"
        for index in _listing(fs, base):
            if not _CACHE_DIRECTORY.fullmatch(index):
                continue
            cache = f"{base}/{index}"
            if _parsed(fs, f"{cache}/level", _integer) != 3:
                continue
            shared = _parsed(fs, f"{cache}/shared_cpu_list", CpuSet.parse) or CpuSet()
            cpus = (shared & online) | CpuSet.of([cpu])
            seen = seen | cpus
            number = _parsed(fs, f"{cache}/id", _integer)
            if (
                number is None
            ):  # virtual machines; without ids there is no resctrl either, so any unique number works
                number = cpu
            size_bytes = _parsed(fs, f"{cache}/size", parse_size_bytes) or 0
            known = domains.get(number)
            domains[number] = L3Domain(number, known.cpus | cpus if known else cpus, size_bytes)
    return tuple(domains[number] for number in sorted(domains))


def _nodes(fs: KernelFs, online: CpuSet) -> tuple[NumaNode, ...]:
    nodes: list[NumaNode] = []
    for number, name in _numbered(fs, NODE_ROOT, _NODE_DIRECTORY):
        cpus = _parsed(fs, f"{NODE_ROOT}/{name}/cpulist", CpuSet.parse) or CpuSet()
        memory_bytes = _parsed(fs, f"{NODE_ROOT}/{name}/meminfo", _mem_total_bytes) or 0
        nodes.append(NumaNode(number, cpus & online, memory_bytes))
    return tuple(nodes)


def _memory_bytes(fs: KernelFs, nodes: tuple[NumaNode, ...]) -> int:
    total = _parsed(fs, MEMINFO, _mem_total_bytes)
    if total is not None:
        return total
    by_nodes = sum(node.memory_bytes for node in nodes)
    if by_nodes == 0:
        raise Gone(MEMINFO, "read", 2, advice="mount procfs on /proc")
    return by_nodes


def _mem_total_bytes(text: str) -> int:
    found = _MEM_TOTAL.search(text)
    if found is None:
        raise ParseError("a meminfo", text, "a line such as 'MemTotal:  1024 kB'")
    return int(found[1]) * 1024


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ParseError("a whole number", text, "decimal digits")
    return int(text)


def _parsed(fs: KernelFs, path: str, parse: Callable[[str], _T]) -> _T | None:
    """The file's value; None if the file is missing or unreadable."""
    try:
        text = read_text(fs, path)
    except KernelError:
        return None
    try:
        return parse(text)
    except ParseError as exc:
        raise ParseError(f"{exc.what} ({path})", text, exc.allowed) from exc


def _listing(fs: KernelFs, path: str) -> list[str]:
    try:
        return fs.listdir(path)
    except KernelError:
        return []


def _numbered(fs: KernelFs, path: str, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    found = (pattern.fullmatch(name) for name in _listing(fs, path))
    return sorted((int(match[1]), match[0]) for match in found if match)
