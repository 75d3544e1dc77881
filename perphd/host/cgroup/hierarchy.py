"""Mounted cgroup hierarchies, and the hierarchy of each controller.

A workload is one path (``/system.slice/mysql.service``) that exists in every relevant hierarchy. A unified
host has one hierarchy, a v1 host one per controller. A hybrid host has v1 controllers beside a v2 tree, which
provides PSI, cpu.stat and perf_event. See Documentation/admin-guide/cgroup-v2.rst, "Interaction with v1".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

from perphd.domain.errors import KernelError, ParseError
from perphd.host.fs import KernelFs, read_text

MOUNTS = "/proc/self/mounts"
_V1_CONTROLLERS = frozenset(
    "cpu cpuacct cpuset memory blkio pids freezer net_cls net_prio hugetlb perf_event devices rdma misc".split()
)
_UNIFIED_MOUNT = "/sys/fs/cgroup"
"""Where systemd mounts cgroup v2 if it manages all units there (its "unified" mode)."""
_SET_IN_CGROUPS = frozenset({"cpu", "cpuset", "memory", "io"})
"""The controllers of settings."""
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters not allowed in workloads' paths. The kernel allows any bytes, but paths are stored, sent and
shown as text."""


class Layout(StrEnum):
    """Arrangement of the host's control groups."""

    V2 = "v2"
    V1 = "v1"
    HYBRID = "hybrid"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree. ``controllers``: on v2 those available at its root, on v1 those bound to it."""

    version: int
    mount: str
    controllers: frozenset[str]

    def path(self, cgroup: str, file: str = "") -> str:
        """Absolute path of a cgroup's directory, or of a file in it."""
        directory = self.mount + ("" if cgroup == "/" else cgroup)
        return f"{directory}/{file}" if file else directory


@dataclass(frozen=True)
class Hierarchies:
    """All mounted hierarchies. ``unified``: the v2 tree, None if there is none."""

    layout: Layout
    unified: Hierarchy | None
    by_controller: Mapping[str, Hierarchy]

    def of(self, controller: str) -> Hierarchy | None:
        """The hierarchy of this controller (v2's ``io`` is v1's ``blkio``); None if no hierarchy has it."""
        return self.by_controller.get(controller)

    def all(self) -> tuple[Hierarchy, ...]:
        """Every hierarchy once, the unified one first."""
        return self._all

    @cached_property
    def _all(self) -> tuple[Hierarchy, ...]:
        seen: dict[str, Hierarchy] = {}
        if self.unified is not None:
            seen[self.unified.mount] = self.unified
        for hierarchy in self.by_controller.values():
            seen.setdefault(hierarchy.mount, hierarchy)
        return tuple(seen.values())

    def directories(self, fs: KernelFs, cgroup: str) -> tuple[str, ...]:
        """The cgroup's directories in all hierarchies; empty if it does not exist."""
        return tuple(path for path in (h.path(cgroup) for h in self.all()) if fs.exists(path))


@lru_cache(maxsize=1024)
def check_cgroup_path(text: str) -> str:
    """Return ``text`` if it is a safe cgroup path.

    Raises:
        ParseError: relative paths, the root itself, ``..`` or ``.`` parts, empty parts, control characters
            (also above ASCII), or invalid UTF-8.
    """
    parts = text.split("/")
    if (
        not text.startswith("/")
        or len(text) > 4000
        or any(part in ("", ".", "..") or len(part) > 255 for part in parts[1:])
        or _NO_TEXT.search(text)
    ):
        raise ParseError(
            "a cgroup path",
            text,
            "an absolute path below the cgroup root such as /system.slice/mariadb.service, "
            "without '.', '..' or empty parts, in UTF-8 without control characters; not the root itself",
        )
    return text


def discover(fs: KernelFs) -> Hierarchies:
    """Find the hierarchy of each controller from the mount table. Never raises for a host without cgroups."""
    unified: Hierarchy | None = None
    by_controller: dict[str, Hierarchy] = {}
    try:
        mounts = read_text(fs, MOUNTS).splitlines()
    except KernelError:
        mounts = []
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        mount = fields[1].encode().decode("unicode_escape")
        if fields[2] == "cgroup2" and unified is None:
            unified = Hierarchy(2, mount, _v2_controllers(fs, mount))
        elif fields[2] == "cgroup":
            bound = _V1_CONTROLLERS & set(fields[3].split(","))
            hierarchy = Hierarchy(1, mount, bound)
            for controller in bound:
                by_controller.setdefault("io" if controller == "blkio" else controller, hierarchy)
    v1 = frozenset(by_controller)
    if unified is not None and unified.mount == _UNIFIED_MOUNT:
        # Programs mount a controller of v1 beside a whole v2 tree, such as net_cls; systemd stays in unified mode.
        v1 &= _SET_IN_CGROUPS
    if unified is not None:
        for controller in unified.controllers:
            by_controller.setdefault(controller, unified)
        by_controller.setdefault(
            "freezer", unified
        )  # cgroup.freeze is in v2's core and belongs to no controller
    if unified is not None:
        layout = Layout.HYBRID if v1 else Layout.V2
    else:
        layout = Layout.V1 if v1 else Layout.NONE
    return Hierarchies(layout, unified, by_controller)


def _v2_controllers(fs: KernelFs, mount: str) -> frozenset[str]:
    try:
        return frozenset(read_text(fs, f"{mount}/cgroup.controllers").split())
    except KernelError:
        return frozenset()


def own_cgroups(fs: KernelFs) -> tuple[tuple[str, str], ...]:
    """(hierarchy, path) of this process in every hierarchy; empty on a host without cgroups."""
    try:
        lines = read_text(fs, "/proc/self/cgroup").splitlines()
    except KernelError:
        return ()
    found = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.append((f"the {parts[1]} hierarchy" if parts[1] else "the unified hierarchy", parts[2]))
    return tuple(found)
