"""One control group: values written to it, counters of the physics, and the files that every group has.

The rules (errno of each write, values read back) are those of Linux 6.1 as captured from a running kernel;
tests/sim replays that capture.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perphd.domain.cpuset import CpuSet
from perphd.sim.counters import CpuCounters, IoCounters, MemoryCounters, PerfCounters, Process
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2 import cpu, io, memory, threads
from perphd.sim.kernel.cgroup2.core_files import CoreFiles
from perphd.sim.kernel.cgroup2.cpuset import MEMBER, Cpuset
from perphd.sim.kernel.cgroup2.pids import Pids
from perphd.sim.kernel.cgroup2.rules import CONTROLLERS, THREADED, FileSpec, ignoring_empty
from perphd.sim.kernel.vfs import Directory, caller_uid, refuse
from perphd.sim.pressure import PressureState

if TYPE_CHECKING:
    from perphd.sim.kernel.cgroup2.tree import CgroupTree

_RESOURCES = ("cpu", "memory", "io")


class SimCgroup:
    """One control group. ``tree``: its hierarchy; ``directory``: the directory with its files.

    The simulation of the work fills in the counters (``cpu``, ``memory``, ``io``, ``perf``, ``pressure``).
    Memory events are counted in the group where they happen; the files add up those of descendants.
    """

    def __init__(self, tree: CgroupTree, parent: SimCgroup | None, name: str, directory: Directory) -> None:
        self.tree, self.parent, self.name, self.directory = tree, parent, name, directory
        self.path: str = "/" if parent is None else f"{parent.path.rstrip('/')}/{name}"
        self.children: dict[str, SimCgroup] = {}
        self.subtree_control: set[str] = set()
        self.processes: list[Process] = []
        self.threaded = self.freeze = False
        self.max_depth: int | None = None
        self.max_descendants: int | None = None
        self.past_events: list[dict[str, int]] = []
        self.cpu, self.io = CpuCounters(), IoCounters()
        self.memory: MemoryCounters = memory.PeakCounters()
        self.perf = PerfCounters()
        self.pressure = {resource: PressureState() for resource in _RESOURCES}
        self.cpuset: Cpuset | None = None
        for controller in CONTROLLERS:
            self._reset(controller)
        if parent is None:
            self.cpuset = self._new_cpuset()
        for spec in CoreFiles(self).files():
            self.put(spec)
        for controller in self.controllers():
            self.attach(controller)
        directory.on_mkdir = self._mkdir
        if parent is not None:
            directory.on_rmdir = self.remove

    # -- what physics asks ------------------------------------------------------------------------

    def controllers(self) -> tuple[str, ...]:
        """This group's controllers, in the kernel's order."""
        if self.parent is None:
            return CONTROLLERS
        given = self.parent.subtree_control
        return tuple(c for c in CONTROLLERS if c in given and (not self.threaded or c in THREADED))

    def has(self, controller: str) -> bool:
        """True if this group has the controller's files (the root has none of the knobs)."""
        return self.parent is not None and controller in self.parent.subtree_control

    @property
    def cpus(self) -> CpuSet:
        """The value of cpuset.cpus; empty: no restriction of its own."""
        return CpuSet() if self.cpuset is None else self.cpuset.cpus

    @property
    def effective_cpus(self) -> CpuSet:
        """cpuset.cpus.effective: CPUs on which its tasks may run."""
        if self.cpuset is not None:
            return self.cpuset.effective
        assert self.parent is not None
        return self.parent.effective_cpus

    @property
    def effective_mems(self) -> CpuSet:
        """cpuset.mems.effective."""
        if self.cpuset is not None:
            return self.cpuset.effective_mems
        assert self.parent is not None
        return self.parent.effective_mems

    @property
    def weight(self) -> int:
        """The weight on cpu.weight's scale, regardless of cpu.idle."""
        return self.cpu_control.weight

    @property
    def idle(self) -> bool:
        """cpu.idle."""
        return self.cpu_control.idle

    @property
    def share_weight(self) -> float:
        """The weight that the scheduler uses, on cpu.weight's scale."""
        return cpu.IDLE_WEIGHT if self.idle else float(self.weight)

    @property
    def quota_us(self) -> int | None:
        """CPU time per period; None: no limit."""
        return self.cpu_control.quota_us

    @property
    def period_us(self) -> int:
        """The period of cpu.max."""
        return self.cpu_control.period_us

    @property
    def memory_pages(self) -> dict[str, int]:
        """Limits and protections in pages: ``min``, ``low``, ``high``, ``max``, ``swap.max`` ..."""
        return self.memory_control.pages

    @property
    def io_limits(self) -> dict[str, int | None]:
        """io.max of the disk: ``rbps``, ``wbps``, ``riops``, ``wiops``; None is no limit."""
        return self.io_control.limits

    @property
    def frozen(self) -> bool:
        """True if its tasks are frozen by cgroup.freeze, here or in an ancestor."""
        return any(group.freeze for group in self.ancestry())

    def populated(self) -> bool:
        """True if this group or one below it holds a process."""
        return any(group.processes or group.tree.guests_of(group) for group in self.walk())

    def walk(self) -> Iterator[SimCgroup]:
        """This group and its descendants, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def ancestry(self) -> Iterator[SimCgroup]:
        """This group and its ancestors, up to the root."""
        here: SimCgroup | None = self
        while here is not None:
            yield here
            here = here.parent

    def all_processes(self) -> list[Process]:
        """The processes of this group and its descendants."""
        return [process for group in self.walk() for process in group.processes]

    @property
    def type(self) -> str:
        """cgroup.type."""
        return threads.type_of(self)

    # -- the tree -----------------------------------------------------------------------------------

    def add_child(self, name: str) -> SimCgroup:
        """Create a child group, regardless of limits."""
        directory = Directory()
        directory.uid = caller_uid.get()
        self.directory.children[name] = directory
        child = SimCgroup(self.tree, self, name, directory)
        self.children[name] = child
        for told in self.tree.on_made:
            told(child)
        return child

    def _mkdir(self, name: str) -> None:
        if "\n" in name:
            raise refuse(errno.EINVAL)
        for level, above in enumerate(self.ancestry(), start=1):
            if above.max_descendants is not None and above.descendants() >= above.max_descendants:
                raise refuse(errno.EAGAIN)
            if above.max_depth is not None and level > above.max_depth:
                raise refuse(errno.EAGAIN)
        self.add_child(name)

    def remove(self) -> None:
        """Remove the group, as by rmdir; OSError: EBUSY with processes or children."""
        if self.children or self.processes or self.tree.guests_of(self):
            raise refuse(errno.EBUSY)
        assert self.parent is not None
        if self.cpuset is not None:
            self.cpuset.set_partition(MEMBER)
        self.parent.past_events += memory.past_events_of(self)
        del self.parent.children[self.name]
        self.parent.directory.remove(self.name)
        for told in self.tree.on_removed:
            told(self)

    def descendants(self) -> int:
        """Number of descendants."""
        return sum(1 for _ in self.walk()) - 1

    # -- controllers --------------------------------------------------------------------------------

    def attach(self, controller: str) -> None:
        """Enable a controller on behalf of the parent: its files appear."""
        if self.parent is None or (self.threaded and controller not in THREADED):
            return
        if controller == "cpuset":
            self.cpuset = self._new_cpuset()
        for spec in self._specs(controller):
            self.put(spec)

    def detach(self, controller: str) -> None:
        """Disable a controller on behalf of the parent: its files and values vanish."""
        if controller == "cpuset" and self.cpuset is not None:
            self.cpuset.set_partition(MEMBER)
        for spec in self._specs(controller):
            self.directory.remove(spec.name)
        self._reset(controller)

    def _reset(self, controller: str) -> None:
        if controller == "cpu":
            self.cpu_control = cpu.Cpu(self.tree.kernel)
        elif controller == "cpuset":
            self.cpuset = None
        elif controller == "memory":
            self.memory_control = memory.Memory(self)
        elif controller == "io":
            self.io_control = io.Io(self.tree.kernel, self.io)
        else:
            self.pids_control = Pids(lambda: sum(len(p.tids) for p in self.all_processes()))

    def _new_cpuset(self) -> Cpuset:
        return Cpuset(
            self.tree,
            None if self.parent is None else self.parent.cpuset,
            lambda: (child.cpuset for child in self.children.values() if child.cpuset is not None),
            lambda: self.parent is None or bool(self.processes),  # kernel threads live in the root
            self.populated,
        )

    def _specs(self, controller: str) -> list[FileSpec]:
        if controller == "cpuset":
            return [] if self.cpuset is None else self.cpuset.files()
        if controller == "cpu":
            return self.cpu_control.files()
        if controller == "memory":
            return self.memory_control.files()
        return self.io_control.files() if controller == "io" else self.pids_control.files()

    def put(self, spec: FileSpec) -> None:
        """Show a file in the group's directory."""
        write = None if spec.write is None else ignoring_empty(spec.write)
        self.directory.add(spec.name, spec.read, write, per_open=spec.per_open)

    def write_subtree(self, data: bytes) -> None:
        """Write cgroup.subtree_control; the write is applied as a whole or not at all."""
        words = formats.text_of(data).split()
        if any(word[0] not in "+-" or word[1:] not in CONTROLLERS for word in words):
            raise refuse(errno.EINVAL)
        wanted = {word[1:]: word[0] == "+" for word in words}  # the last occurrence counts
        add = {name for name, on in wanted.items() if on} - self.subtree_control
        drop = {name for name, on in wanted.items() if not on} & self.subtree_control
        if add - set(self.controllers()):
            raise refuse(errno.ENOENT)
        if any(drop & child.subtree_control for child in self.children.values()):
            raise refuse(errno.EBUSY)
        threads.check_enable(self, add)
        for child in self.children.values():
            for controller in sorted(drop):
                child.detach(controller)
        self.subtree_control = (self.subtree_control | add) - drop
        for child in self.children.values():
            for controller in sorted(add):
                child.attach(controller)
