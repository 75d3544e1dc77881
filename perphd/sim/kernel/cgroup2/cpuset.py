"""The cpuset controller of cgroup v2, partitions included.

``effective`` is stored, not computed on read: the kernel recomputes it only for groups that a change reaches, and 6.1
misses some (a sibling whose partition was invalidated by another one's write, CPUs of a partition that was emptied).
These quirks are simulated, too. Source: captures of a running 6.1 kernel, and Documentation/admin-guide/cgroup-v2.rst
("Cpuset Interface Files").
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2.rules import FileSpec
from perphd.sim.kernel.vfs import refuse

MEMBER: Final = "member"
_STATES: Final = (MEMBER, "root", "isolated")
_EMPTY: Final = "cpuset.cpus is empty"
_NOT_EXCLUSIVE: Final = "Cpu list in cpuset.cpus not exclusive"
_NO_CPUS: Final = "Parent unable to distribute cpu downstream"
_HOTPLUG: Final = "No cpu available due to hotplug"
_NO_OVERLAP: Final = "Invalid cpu list in cpuset.cpus"
_PARENT_INVALID: Final = "Parent is an invalid partition root"
_PARENT_MEMBER: Final = "Parent is not a partition root"


class Machine(Protocol):
    """The part of the tree that a cpuset needs."""

    online: CpuSet
    nodes: CpuSet
    nr_cpus: int


class Cpuset:
    """State and files of one group's cpuset; the root's has no parent and is always a valid partition.

    ``taken``: CPUs given to partitions below. ``state`` and ``valid``: the requested state, and whether it is
    valid. ``holds_tasks`` refers to the group itself, ``populated`` to the group and its descendants.
    """

    def __init__(
        self,
        machine: Machine,
        parent: Cpuset | None,
        children: Callable[[], Iterator[Cpuset]],
        holds_tasks: Callable[[], bool],
        populated: Callable[[], bool],
    ) -> None:
        self._machine, self._parent = machine, parent
        self._children, self._holds_tasks, self.populated = children, holds_tasks, populated
        self.cpus = self.mems = CpuSet()
        self.taken = CpuSet()
        self.state, self.valid, self.error = MEMBER, True, ""
        self.effective: CpuSet = machine.online if parent is None else parent.effective
        self._lives_from_parent = parent is not None

    # -- files ----------------------------------------------------------------------------------------

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        return [
            FileSpec("cpuset.cpus", lambda: f"{self.cpus}\n", self._write_cpus),
            FileSpec("cpuset.cpus.effective", lambda: f"{self.effective}\n"),
            FileSpec("cpuset.cpus.partition", self._read_partition, self._write_partition),
            FileSpec("cpuset.mems", lambda: f"{self.mems}\n", self._write_mems),
            FileSpec("cpuset.mems.effective", lambda: f"{self.effective_mems}\n"),
        ]

    @property
    def effective_mems(self) -> CpuSet:
        """Effective memory nodes: the nodes of ``mems`` that the parent has; if there are none, all the parent's."""
        above = self._machine.nodes if self._parent is None else self._parent.effective_mems
        return (self.mems & above) or above

    @property
    def is_partition(self) -> bool:
        """True for a valid partition root."""
        return self._parent is None or (self.state != MEMBER and self.valid)

    def _read_partition(self) -> str:
        if self.state == MEMBER or self.valid:
            return self.state + "\n"
        return f"{self.state} invalid ({self.error})\n" if self.error else f"{self.state} invalid\n"

    def _write_mems(self, data: bytes) -> None:
        nodes = formats.parse_list(formats.text_of(data), 64)
        if not nodes <= self._machine.nodes:
            raise refuse(errno.EINVAL)
        if self.mems and not nodes and self.populated():
            raise refuse(errno.ENOSPC)
        self.mems = nodes

    def _write_cpus(self, data: bytes) -> None:
        cpus = formats.parse_list(formats.text_of(data), self._machine.nr_cpus)
        if cpus == self.cpus:
            return
        if self.cpus and not cpus and self.populated():
            raise refuse(errno.ENOSPC)
        rivals = [other for other in self._siblings() if other.cpus & cpus]
        exclusive = self.is_partition or any(other.is_partition for other in rivals)
        conflict = exclusive and bool(rivals)
        if conflict:
            for rival in rivals:
                if rival.is_partition:
                    rival._invalidate(_NOT_EXCLUSIVE)
        if self.state != MEMBER:
            if conflict:
                self._invalidate(_NOT_EXCLUSIVE)
            else:
                self._update(cpus)
        self.cpus = cpus
        self._refresh()
        if self.state != MEMBER:
            self._refresh_siblings()

    def _write_partition(self, data: bytes) -> None:
        wanted = formats.text_of(data)
        if wanted not in _STATES:
            raise refuse(errno.EINVAL)
        self.set_partition(wanted)

    def restrict(self, cpus: CpuSet, mems: CpuSet) -> None:
        """Set both lists without the files' checks (a v1 hierarchy has its own rules)."""
        self.cpus, self.mems = cpus, mems
        self._refresh()

    # -- partitions -----------------------------------------------------------------------------------

    def set_partition(self, wanted: str) -> None:
        """Write cpuset.cpus.partition: never refused; a read shows whether it took effect."""
        if wanted == self.state:
            return
        if wanted != MEMBER and self.state != MEMBER:
            self.state = wanted  # root <-> isolated; an invalid partition stays invalid
            return
        if wanted == MEMBER:
            if self.valid and self.cpus:  # with an empty list, 6.1 forgets to return the CPUs
                self._return_cpus(self.cpus)
            self.taken = CpuSet()
            self.state, self.valid, self.error = MEMBER, True, ""
        else:
            self.error = self._why_not()
            self.state, self.valid = wanted, not self.error
            if self.error:
                return
            self._take_cpus(self.cpus)
        self._refresh()
        self._refresh_siblings()

    def _why_not(self) -> str:
        assert self._parent is not None
        if not self.cpus:
            return _EMPTY
        if any(other.cpus & self.cpus for other in self._siblings()):
            return _NOT_EXCLUSIVE
        if not self._parent.is_partition:
            return _PARENT_MEMBER if self._parent.state == MEMBER else _PARENT_INVALID
        if not self.cpus & self._parent._allowed():
            return _NO_OVERLAP
        if self._parent.effective <= self.cpus and self._parent.needs_cpus(self):
            return _NO_CPUS
        return ""

    def needs_cpus(self, but: Cpuset) -> bool:
        """True if tasks run on this partition's own CPUs: in the group, or below it outside of partitions."""
        return self._holds_tasks() or any(
            child.populated() for child in self._children() if child is not but and not child.is_partition
        )

    def _update(self, cpus: CpuSet) -> None:
        """Change the list of a partition (valid or not) to ``cpus``: it may lose or regain its validity."""
        parent = self._parent
        assert parent is not None
        if not parent.is_partition:
            self._invalidate(_PARENT_MEMBER if parent.state == MEMBER else _PARENT_INVALID)
            return
        if not cpus:
            return  # 6.1 stops checking here, and the CPUs stay taken
        gone = (self.cpus - cpus) & parent.taken
        new = (cpus & parent._allowed()) - parent.taken
        if not self.valid and any(other.cpus & self.cpus for other in self._siblings()):
            return  # 6.1 checks the previous list, and so misses a conflict with the new one
        if new and parent.effective <= new and not gone & self._machine.online and parent.needs_cpus(self):
            self._invalidate(_NO_CPUS)
            return
        self.valid, self.error = True, ""
        parent.taken = (parent.taken | new) - gone
        parent.effective = (parent.effective - new) | (gone & self._machine.online)

    def _invalidate(self, reason: str) -> None:
        if not self.valid:
            return
        self.valid, self.error = False, reason
        self._return_cpus(self.cpus)

    def _take_cpus(self, cpus: CpuSet) -> None:
        assert self._parent is not None
        self._parent.taken = self._parent.taken | cpus
        self._parent.effective = self._parent.effective - cpus

    def _return_cpus(self, cpus: CpuSet) -> None:
        parent = self._parent
        assert parent is not None
        back = cpus & parent.taken
        parent.taken = parent.taken - back
        parent.effective = parent.effective | (back & self._machine.online)

    # -- effective CPUs -------------------------------------------------------------------------------

    def online_changed(self) -> None:
        """Update all effective lists after CPU hotplug; called on the root's cpuset."""
        self.effective = self._machine.online - self.taken
        self._refresh_below()

    def _allowed(self) -> CpuSet:
        """CPUs assigned to this group, whether or not effective; all CPUs for the root."""
        return self._machine.online if self._parent is None else self.cpus

    def _refresh(self) -> None:
        """Recompute the effective lists here and below."""
        parent = self._parent
        assert parent is not None
        given = parent.effective | parent.taken if self.is_partition else parent.effective
        own = self.cpus & given & self._machine.online
        if self.is_partition and self.cpus and not own and self.populated():
            self._invalidate(_HOTPLUG)
        found = (
            own if self.is_partition else own or parent.effective
        )  # a partition may be left without any CPU
        self._lives_from_parent = not own
        if not self.is_partition:
            self.taken = CpuSet()
        self.effective = found - self.taken
        self._refresh_below()

    def _refresh_below(self) -> None:
        for child in self._children():
            if child.state != MEMBER and not self.is_partition:
                child._invalidate(_PARENT_MEMBER if self.state == MEMBER else _PARENT_INVALID)
            elif child.state != MEMBER:
                child._update(child.cpus)
        for child in self._children():
            child._refresh()

    def _refresh_siblings(self) -> None:
        """Update siblings that use the parent's CPUs."""
        parent = self._parent
        assert parent is not None
        for other in self._siblings():
            if other._lives_from_parent:
                other._refresh()

    def _siblings(self) -> Iterator[Cpuset]:
        assert self._parent is not None
        return (other for other in self._parent._children() if other is not self)
