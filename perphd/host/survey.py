"""Surveys this machine: processes with CPU use, their control groups, and listening sockets.

It only reads, and runs in perphctl, never in the daemon.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

import psutil

from perphd.domain.host_facts import GroupFact, HostFacts, ProcessFact
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.containers import ContainerNames
from perphd.host.fs import KernelFs
from perphd.host.lookup import Lookup, primary
from perphd.host.systemd_fs import unit_of

OVER_S = 2.0
"""Seconds over which CPU use is measured."""
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_ARGV_BYTES = 8192


def survey(
    fs: KernelFs, hierarchies: Hierarchies, own: frozenset[str], tcp_latency: bool, over_s: float = OVER_S
) -> HostFacts:
    """All running processes, with CPU use over ``over_s`` seconds. Processes that end meanwhile are left out."""
    before = {process.pid: (process, _cpu_s(process)) for process in psutil.process_iter()}
    began_s = time.monotonic()
    time.sleep(over_s)
    took_s = max(time.monotonic() - began_s, 1e-3)
    ports, sockets = _listening()
    lookup, names = Lookup(fs, hierarchies), ContainerNames(fs)
    members: defaultdict[str, list[ProcessFact]] = defaultdict(list)
    for pid, (process, cpu_s) in before.items():
        fact = _fact(process, cpu_s, took_s, tuple(sorted(ports[pid])), tuple(sorted(sockets[pid])))
        if fact is not None:
            members[lookup.of_process(pid) or "/"].append(fact)
    groups = tuple(
        GroupFact(cgroup, tuple(processes), unit_of(cgroup), names.label(cgroup))
        for cgroup, processes in sorted(members.items())
    )
    return HostFacts(
        os.cpu_count() or 1, groups, timed_units(), _slices(lookup, hierarchies), own, tcp_latency
    )


def timed_units(folders: tuple[str, ...] = UNIT_FOLDERS) -> frozenset[str]:
    """Services started by a timer of the same name."""
    found = set()
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        timers = (name.removesuffix(".timer") for name in names if name.endswith(".timer"))
        found |= {f"{name}.service" for name in timers if not name.endswith("@") and _is_on(folder, name)}
    return frozenset(found)


def _is_on(folder: str, name: str) -> bool:
    """False for a masked timer."""
    return Path(folder, f"{name}.timer").resolve() != Path("/dev/null")


def _slices(lookup: Lookup, hierarchies: Hierarchies) -> frozenset[str]:
    if primary(hierarchies) is None:
        return frozenset()
    found, waiting = set(), [""]
    while waiting:
        parent = waiting.pop()
        for name in lookup.children(parent or "/"):
            if name.endswith(".slice"):
                found.add(f"{parent}/{name}")
                waiting.append(f"{parent}/{name}")
    return frozenset(found)


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _fact(
    process: psutil.Process, cpu_s: float, took_s: float, ports: tuple[int, ...], sockets: tuple[str, ...]
) -> ProcessFact | None:
    """Facts of one process; None if it has ended or is a kernel thread, which no group can hold."""
    try:
        with process.oneshot():
            argv = tuple(process.cmdline())
            if not argv and not process.memory_info().rss:
                return None
            return ProcessFact(
                process.pid,
                process.name(),
                _cut(argv),
                max(0.0, (_cpu_s(process) - cpu_s) / took_s),
                process.memory_info().rss,
                ports,
                sockets,
                int(process.nice()),
            )
    except psutil.Error:
        return None


def _cut(argv: tuple[str, ...]) -> tuple[str, ...]:
    """As many words as fit in the limit, since class paths can be very long."""
    kept: list[str] = []
    size = 0
    for word in argv:
        size += len(word)
        if kept and size > _ARGV_BYTES:
            continue
        kept.append(word[:_ARGV_BYTES])
    return tuple(kept)


def _listening() -> tuple[defaultdict[int, set[int]], defaultdict[int, set[str]]]:
    """TCP ports and Unix sockets on which processes listen, by process id.

    Without root only this user's processes are covered.
    """
    ports: defaultdict[int, set[int]] = defaultdict(set)
    sockets: defaultdict[int, set[str]] = defaultdict(set)
    try:
        connections = psutil.net_connections("all")
    except psutil.Error:
        return ports, sockets
    for connection in connections:
        if connection.pid is None:
            continue
        if connection.status == psutil.CONN_LISTEN:
            ports[connection.pid].add(connection.laddr.port)
        elif isinstance(connection.laddr, str) and connection.laddr.startswith("/"):
            sockets[connection.pid].add(connection.laddr)
    return ports, sockets
