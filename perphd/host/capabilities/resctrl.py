"""Probes whether resctrl offers Intel RDT or AMD QoS: allocation and monitoring of cache and bandwidth.

Read-only; the interface itself is the package ``rdt``. See Documentation/filesystems/resctrl.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.capabilities.resctrl_counters import probe_counters
from perphd.host.cgroup.hierarchy import MOUNTS
from perphd.host.fs import KernelFs, text_or_empty

MOUNT_UNIT: Final = "sys-fs-resctrl.mount"
"""The package's unit that mounts resctrl at each boot if the CPU supports it."""
_MOUNT_COMMAND: Final = "mount -t resctrl resctrl /sys/fs/resctrl"

_FLAGS_LINE = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Feature:
    """One resource of resctrl: its CPU flags in /proc/cpuinfo, and its files in a mounted resctrl.

    ``infos``: the first existing file counts. With code and data prioritisation a cache has two.
    """

    name: str
    area: Area
    flags: frozenset[str]
    infos: tuple[str, ...]
    cost: str


_FEATURES: Final = (
    _Feature(
        "resctrl.l3_cat",
        Area.ENFORCE,
        frozenset({"cat_l3"}),
        ("info/L3/cbm_mask", "info/L3DATA/cbm_mask"),
        "batch cannot be kept out of a part of the last-level cache",
    ),
    _Feature(
        "resctrl.mba",
        Area.ENFORCE,
        frozenset({"mba"}),
        ("info/MB/min_bandwidth",),
        "batch's memory bandwidth cannot be throttled",
    ),
)


def probe_resctrl(fs: KernelFs) -> Iterator[Capability]:
    """The capabilities of resctrl and each of its resources, in display order."""
    flags = _cpu_flags(fs)
    mount = _mount(fs)
    yield _resctrl(fs, flags, mount)
    for feature in _FEATURES:
        yield _feature(fs, feature, flags, mount)
    yield from probe_counters(fs, flags, mount)


def _resctrl(fs: KernelFs, flags: frozenset[str], mount: str | None) -> Capability:
    cost = "neither cache nor memory bandwidth can be divided or measured per workload"
    if mount is not None:
        return Capability("resctrl", Area.ENFORCE, True, f"mounted at {mount}")
    if "resctrl" in text_or_empty(fs, "/proc/filesystems").split():
        remedy = f"systemctl enable --now {MOUNT_UNIT} (permanent); until a reboot: {_MOUNT_COMMAND}"
        return Capability(
            "resctrl", Area.ENFORCE, False, "the kernel has it, but it is not mounted", cost, remedy
        )
    if flags & {"rdt_a", "cqm_llc", *(flag for feature in _FEATURES for flag in feature.flags)}:
        detail = "not in /proc/filesystems, although the CPU has it"
        remedy = "a kernel with CONFIG_X86_CPU_RESCTRL, booted without rdt=!..."
    else:
        detail = "not in /proc/filesystems, and the CPU shows no RDT or QoS flag"
        remedy = "a CPU with Intel RDT or AMD QoS, on bare metal: virtual machines do not get it"
    return Capability("resctrl", Area.ENFORCE, False, detail, cost, remedy)


def _feature(fs: KernelFs, feature: _Feature, flags: frozenset[str], mount: str | None) -> Capability:
    have = ", ".join(sorted(flags & feature.flags))
    for info in feature.infos if mount is not None else ():
        if fs.exists(f"{mount}/{info}"):
            return _offered(fs, feature, f"{mount}/{info}", info)
    if have and mount is None:
        detail, remedy = f"the CPU has {have}, but resctrl is not mounted", "see resctrl"
    elif have:
        detail, remedy = f"the CPU has {have}, but {mount} has no {feature.infos[0]}", "boot without rdt=!..."
    else:
        detail, remedy = (
            f"the CPU shows none of {', '.join(sorted(feature.flags))}",
            "another CPU; see resctrl",
        )
    return Capability(feature.name, feature.area, False, detail, feature.cost, remedy)


def _offered(fs: KernelFs, feature: _Feature, path: str, info: str) -> Capability:
    value = " ".join(text_or_empty(fs, path).split())
    if feature.name == "resctrl.mba" and "mba_MBps" in _options(fs):
        detail = "mounted with mba_MBps: limits are in MB/s, but perphd sets percentages"
        remedy = f"umount /sys/fs/resctrl (which removes all groups of all programs), then {_MOUNT_COMMAND}"
        return Capability(feature.name, feature.area, False, detail, feature.cost, remedy)
    detail = f"{info}: {value}"
    if "DATA" in info:
        detail += "; code and data separate (cdp), both get the same mask"
    return Capability(feature.name, feature.area, True, detail)


def _cpu_flags(fs: KernelFs) -> frozenset[str]:
    found = _FLAGS_LINE.search(text_or_empty(fs, "/proc/cpuinfo"))
    return frozenset(found[1].split()) if found else frozenset()


def _mount(fs: KernelFs) -> str | None:
    fields = _mount_fields(fs)
    return fields[1].encode().decode("unicode_escape") if fields else None


def _options(fs: KernelFs) -> list[str]:
    fields = _mount_fields(fs)
    return fields[3].split(",") if len(fields) > 3 else []


def _mount_fields(fs: KernelFs) -> list[str]:
    for line in text_or_empty(fs, MOUNTS).splitlines():
        fields = line.split(" ")
        if len(fields) >= 3 and fields[2] == "resctrl":
            return fields
    return []
