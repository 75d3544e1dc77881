"""Mount points of v1 hierarchies, and controllers that share one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perphd.sim.kernel.cgroup1.cpu import V1Cpu, V1CpuAcct, V1Cpuset
from perphd.sim.kernel.cgroup1.hierarchy import Factory, V1Hierarchy
from perphd.sim.kernel.cgroup1.memory import V1Blkio, V1Freezer, V1Memory, V1Pids
from perphd.sim.kernel.cgroup2 import CgroupTree
from perphd.sim.kernel.proc import Mount
from perphd.sim.kernel.vfs import Directory

_FACTORIES: Final[Mapping[str, Factory]] = {
    "cpu": V1Cpu,
    "cpuacct": V1CpuAcct,
    "cpuset": V1Cpuset,
    "memory": V1Memory,
    "blkio": V1Blkio,
    "freezer": V1Freezer,
    "pids": V1Pids,
}
HIERARCHIES: Final = ("cpu,cpuacct", "cpuset", "memory", "blkio", "freezer", "pids")
"""Hierarchies as systemd mounted them in its legacy mode; a directory's name lists the controllers bound to it."""


def mount_v1(
    root: Directory, base: str, tree: CgroupTree
) -> tuple[Mapping[str, V1Hierarchy], tuple[Mount, ...]]:
    """Mount every hierarchy below ``base`` (``/sys/fs/cgroup``), replacing previous mounts there.

    ``tree`` still accounts for the work, but its own files are hidden.

    Returns:
        the hierarchies by name, and their lines of the mount table.
    """
    parent, _, name = base.rpartition("/")
    root.make(parent).children.pop(name, None)
    top = root.make(base)
    hierarchies = {}
    mounts = [Mount("tmpfs", base, "tmpfs", "ro,nosuid,nodev,noexec,mode=755")]
    for names in HIERARCHIES:
        factories = {controller: _FACTORIES[controller] for controller in names.split(",")}
        hierarchies[names] = V1Hierarchy(top.make(names), factories, tree)
        options = f"rw,nosuid,nodev,noexec,relatime,{names}"
        mounts.append(Mount("cgroup", f"{base}/{names}", "cgroup", options))
    return hierarchies, tuple(mounts)
