"""Probes whether this host can enforce settings: control groups, controllers, and the permission to write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.capabilities.facts import (
    CAP_DAC_OVERRIDE,
    first_directories,
    has_capability,
    is_root,
    release,
    release_text,
)
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.fs import KernelFs, text_or_empty
from perphd.host.systemd import is_systemd

CPU_IDLE_SINCE: Final = (5, 15)

_CONTROLLERS: Final[Mapping[str, str]] = {
    "cpu": "batch cannot be demoted by weight",
    "cpuset": "neither LRA nor batch can be confined to cores",
    "memory": "an LRA's memory cannot be protected, and batch's cannot be limited",
    "io": "batch's disk traffic cannot be limited",
}


def probe_enforcement(fs: KernelFs, hierarchies: Hierarchies) -> Iterator[Capability]:
    """All capabilities about control groups, in display order."""
    yield _cgroup(hierarchies)
    for name in _CONTROLLERS:
        yield _controller(fs, hierarchies, name)
    yield _cpu_idle(fs, hierarchies)
    yield _memory_protection(hierarchies)
    yield _privilege(fs)


def _cgroup(hierarchies: Hierarchies) -> Capability:
    if hierarchies.layout is Layout.NONE:
        return Capability(
            "cgroup",
            Area.ENFORCE,
            False,
            "no cgroup hierarchy is mounted",
            "nothing can be measured per workload or enforced",
            "mount -t cgroup2 none /sys/fs/cgroup",
        )
    parts = []
    if hierarchies.unified is not None:
        parts.append(f"v2 at {hierarchies.unified.mount}")
    v1 = sorted(name for name, hierarchy in hierarchies.by_controller.items() if hierarchy.version == 1)
    if v1:
        parts.append(f"v1 for {', '.join(v1)}")
    return Capability("cgroup", Area.ENFORCE, True, f"{hierarchies.layout}: {'; '.join(parts)}")


def _controller(fs: KernelFs, hierarchies: Hierarchies, name: str) -> Capability:
    label, cost = f"cgroup.{name}", _CONTROLLERS[name]
    hierarchy = hierarchies.of(name)
    if hierarchy is None:
        return Capability(
            label,
            Area.ENFORCE,
            False,
            "in no mounted hierarchy",
            cost,
            f"boot without cgroup_disable={name}, with a kernel that has the {name} controller, "
            "and mount cgroup2 (or, on v1, this controller)",
        )
    if hierarchy.version == 1:
        return Capability(label, Area.ENFORCE, True, f"v1 at {hierarchy.mount}")
    enabled = text_or_empty(fs, f"{hierarchy.mount}/cgroup.subtree_control").split()
    if name in enabled:
        return Capability(label, Area.ENFORCE, True, f"v2 at {hierarchy.mount}, enabled below the root")
    return Capability(
        label,
        Area.ENFORCE,
        False,
        f"v2 at {hierarchy.mount} has it, but it is not enabled below the root (cgroup.subtree_control)",
        cost,
        _how_to_enable(fs, hierarchy, name),
    )


def _how_to_enable(fs: KernelFs, hierarchy: Hierarchy, name: str) -> str:
    if not is_systemd(fs):
        return f"echo +{name} > {hierarchy.mount}/cgroup.subtree_control, and so on down to the workloads"
    setting = {"cpuset": "AllowedCPUs=", "cpu": "CPUWeight=", "memory": "MemoryLow=", "io": "IOWeight="}[name]
    return f"set {setting} on the workload's unit: systemd then enables it (and reverts enabling by hand)"


def _cpu_idle(fs: KernelFs, hierarchies: Hierarchies) -> Capability:
    cost = "batch can be demoted by weight only, not to SCHED_IDLE"
    hierarchy = hierarchies.of("cpu")
    if hierarchy is None:
        return Capability("cpu.idle", Area.ENFORCE, False, "no cpu controller", cost, "see cgroup.cpu")
    for directory in first_directories(fs, hierarchy):
        if fs.exists(f"{directory}/cpu.idle"):
            return Capability("cpu.idle", Area.ENFORCE, True, f"{directory}/cpu.idle")
    if release(fs) >= CPU_IDLE_SINCE:
        detail = f"Linux {release_text(fs)} has it where the cpu controller is enabled"
        return Capability("cpu.idle", Area.ENFORCE, True, detail)
    return Capability(
        "cpu.idle",
        Area.ENFORCE,
        False,
        f"Linux {release_text(fs)} has no cpu.idle",
        cost,
        "Linux 5.15 or newer with CONFIG_FAIR_GROUP_SCHED",
    )


def _memory_protection(hierarchies: Hierarchies) -> Capability:
    hierarchy = hierarchies.of("memory")
    if hierarchy is not None and hierarchy.version == 2:
        return Capability(
            "memory.protection", Area.ENFORCE, True, f"memory.low and memory.high at {hierarchy.mount}"
        )
    detail = (
        "no memory controller"
        if hierarchy is None
        else f"v1 at {hierarchy.mount} has no memory.low, memory.high"
    )
    return Capability(
        "memory.protection",
        Area.ENFORCE,
        False,
        detail,
        "an LRA's memory cannot be protected; batch's can only be limited hard",
        "boot with systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=memory) so that memory is on cgroup v2",
    )


def _privilege(fs: KernelFs) -> Capability:
    # Writing control groups needs only the permissions of their files, which belong to root unless delegated.
    if has_capability(fs, CAP_DAC_OVERRIDE):
        return Capability(
            "privilege",
            Area.ENFORCE,
            True,
            "CAP_DAC_OVERRIDE is effective: files of any owner can be written",
        )
    if is_root(fs):
        detail = "root without CAP_DAC_OVERRIDE: can write root's control groups, not those delegated to other users"
        return Capability("privilege", Area.ENFORCE, True, detail)
    return Capability(
        "privilege",
        Area.ENFORCE,
        False,
        "not root, and CAP_DAC_OVERRIDE is not effective",
        "control groups of root and of other users cannot be written: nothing is enforced on their workloads",
        "run perphd as root (its unit does)",
    )
