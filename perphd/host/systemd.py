"""Which control groups belong to systemd: those it must be asked to change, and those it gave away.

No D-Bus here. Whether a unit delegates is read from the mark that systemd itself leaves on the cgroup, the
extended attributes ``user.delegate`` and ``trusted.delegate``.
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
"""(real directory, attribute) -> value; raises OSError when it is not there."""


@dataclass(frozen=True, slots=True)
class UnitOwner:
    """The innermost systemd unit that a cgroup is, or lies in.

    ``unit``: its name; ``cgroup``: its path; ``is_unit``: the cgroup asked about is the unit itself;
    ``delegated``: the unit carries systemd's mark of delegation.
    """

    unit: str
    cgroup: str
    is_unit: bool
    delegated: bool

    @property
    def allows_direct_writes(self) -> bool:
        """True only below a delegated unit: the unit's own files stay systemd's."""
        return self.delegated and not self.is_unit

    def refusal(self) -> str:
        """Why files of this cgroup must not be written directly; empty if they may be."""
        if self.allows_direct_writes:
            return ""
        if self.is_unit:
            return f"{self.unit} is a unit that systemd manages: it would undo what others write"
        return f"{self.cgroup} belongs to {self.unit}, which does not delegate (Delegate=yes in the unit)"


def is_systemd(fs: KernelFs) -> bool:
    """True if systemd is PID 1."""
    return fs.exists(RUNNING)


def owner_unit(
    hierarchies: Hierarchies, fs: KernelFs, cgroup_path: str, read_xattr: XattrReader = os.getxattr
) -> UnitOwner | None:
    """The unit that this cgroup is or lies in; None if systemd is not PID 1 or no part of the path is a unit.

    Args:
        hierarchies: where the delegation mark is looked for.
        fs: tells whether systemd is PID 1.
        cgroup_path: path below the cgroup root, as in a workload's declaration.
        read_xattr: for hosts that are simulated or captured.
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
            except OSError:  # not marked, not readable (trusted.* needs CAP_SYS_ADMIN), or not in this tree
                continue
    return False
