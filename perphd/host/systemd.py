"""Finds which control groups belong to systemd: those to change through systemd, and delegated ones.

This module does not use D-Bus. Delegation is read from the mark that systemd leaves on the cgroup, the extended
attributes ``user.delegate`` and ``trusted.delegate``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs

RUNNING = "/run/systemd/system"
"""Exists exactly while systemd is PID 1 (sd_booted(3))."""

_UNIT = re.compile(r".+\.(?:service|scope|slice|mount|socket|swap)")
_DELEGATE_MARKS = ("user.delegate", "trusted.delegate")

XattrReader = Callable[[str, str], bytes]
"""Returns the value of (real directory, attribute); raises OSError if it is missing."""


@dataclass(frozen=True, slots=True)
class UnitOwner:
    """The innermost systemd unit that is, or contains, a cgroup.

    ``unit``: its name. ``cgroup``: its path. ``is_unit``: the cgroup is the unit itself. ``delegated``: the
    unit has systemd's delegation mark.
    """

    unit: str
    cgroup: str
    is_unit: bool
    delegated: bool

    @property
    def allows_direct_writes(self) -> bool:
        """True only inside a delegated unit; the unit's own files belong to systemd."""
        return self.delegated and not self.is_unit

    def refusal(self) -> str:
        """Reason why files of this cgroup must not be written directly; empty if they may be."""
        if self.allows_direct_writes:
            return ""
        if self.is_unit:
            return f"{self.unit} is a unit that systemd manages: systemd would undo direct writes"
        return f"{self.cgroup} belongs to {self.unit}, which does not delegate (Delegate=yes in the unit)"


def is_systemd(fs: KernelFs) -> bool:
    """True if systemd is PID 1."""
    return fs.exists(RUNNING)


def owner_unit(
    hierarchies: Hierarchies, fs: KernelFs, cgroup_path: str, read_xattr: XattrReader = os.getxattr
) -> UnitOwner | None:
    """The unit that is, or contains, this cgroup; None if there is none, or systemd is not PID 1.

    Args:
        hierarchies: where delegation marks are searched.
        fs: shows whether systemd is PID 1.
        cgroup_path: path below the cgroup root, as in a workload's declaration.
        read_xattr: replaced for simulated or captured hosts.
    """
    if not is_systemd(fs):
        return None
    parts = cgroup_path.strip("/").split("/")
    for depth in range(len(parts), 0, -1):
        name = parts[depth - 1]
        if _UNIT.fullmatch(name):
            cgroup = "/" + "/".join(parts[:depth])
            delegated = _delegated(hierarchies, cgroup, read_xattr)
            return UnitOwner(name, cgroup, depth == len(parts), delegated)
    return None


def _delegated(hierarchies: Hierarchies, cgroup: str, read_xattr: XattrReader) -> bool:
    for hierarchy in hierarchies.all():
        for mark in _DELEGATE_MARKS:
            try:
                if read_xattr(hierarchy.path(cgroup), mark) == b"1":
                    return True
            except (
                OSError
            ):  # not marked, not readable (trusted.* needs CAP_SYS_ADMIN), or absent from this tree
                continue
    return False
