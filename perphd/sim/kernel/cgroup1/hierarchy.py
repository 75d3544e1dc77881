"""A v1 hierarchy: its tree of groups, the position of tasks in it, and the files that every group has.

A group here is a directory with its own values, created and removed by mkdir and rmdir. Its values act on the
group of the v2 tree at the same path (``bound``), which does the simulated work and provides the counters.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from perphd.sim.counters import Process
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2 import CgroupTree, SimCgroup
from perphd.sim.kernel.cgroup2.rules import FileSpec, ignoring_empty
from perphd.sim.kernel.vfs import Directory, caller_uid, refuse


class Controller(Protocol):
    """One controller's state in one group."""

    def files(self) -> list[FileSpec]:
        """Its files."""

    def check_tasks(self) -> None:
        """Check whether tasks may enter; OSError if not."""


Factory = Callable[["V1Group", Controller | None], Controller]
"""Makes a controller's state for a group. The second argument is the parent group's state, None for the root."""


class V1Group:
    """One group of one hierarchy. ``managed``: a service manager made the group and initialised the values
    that a new group lacks.
    """

    def __init__(
        self,
        hierarchy: V1Hierarchy,
        parent: V1Group | None,
        name: str,
        directory: Directory,
        managed: bool = False,
    ) -> None:
        self.hierarchy, self.parent, self.name, self.directory = hierarchy, parent, name, directory
        self.managed = managed
        self.path: str = "/" if parent is None else f"{parent.path.rstrip('/')}/{name}"
        self.children: dict[str, V1Group] = {}
        self._switches = {"notify_on_release": False, "cgroup.clone_children": False}
        self.controllers: dict[str, Controller] = {}
        for controller, make in hierarchy.factories.items():
            above = None if parent is None else parent.controllers[controller]
            self.controllers[controller] = make(self, above)
        self._put_files()
        directory.on_mkdir = self.make_child
        if parent is not None:
            directory.on_rmdir = self.remove

    @property
    def bound(self) -> SimCgroup | None:
        """The group that does the simulated work of this path, if it exists."""
        return self.hierarchy.tree.find(self.path)

    def walk(self) -> Iterator[V1Group]:
        """This group and its descendants, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def processes(self) -> list[Process]:
        """Processes in this group (not in descendants)."""
        return self.hierarchy.processes_in(self)

    def make_child(self, name: str, managed: bool = False) -> None:
        """Create a child group, as by mkdir."""
        if "\n" in name:
            raise refuse(errno.EINVAL)
        directory = Directory()
        directory.uid = caller_uid.get()
        self.directory.children[name] = directory
        self.children[name] = V1Group(self.hierarchy, self, name, directory, managed)

    def remove(self) -> None:
        """Remove the group, as by rmdir; OSError: EBUSY with tasks or children."""
        if self.children or self.processes():
            raise refuse(errno.EBUSY)
        assert self.parent is not None
        del self.parent.children[self.name]
        self.parent.directory.remove(self.name)

    def _put_files(self) -> None:
        specs = [
            FileSpec("tasks", self._read_tasks, self._move),
            FileSpec("cgroup.procs", self._read_procs, self._move),
            *(self._switch(name) for name in self._switches),
        ]
        if self.parent is None:
            specs += [
                FileSpec("cgroup.sane_behavior", lambda: "0\n"),
                FileSpec("release_agent", lambda: "\n"),
            ]
        for controller in self.controllers.values():
            specs += controller.files()
        for spec in specs:
            write = None if spec.write is None else ignoring_empty(spec.write)
            self.directory.add(spec.name, spec.read, write)

    def _switch(self, name: str) -> FileSpec:
        def write(data: bytes) -> None:
            self._switches[name] = bool(formats.parse_u64(data))

        return FileSpec(name, lambda: f"{int(self._switches[name])}\n", write)

    def _read_tasks(self) -> str:
        kernel = sorted(self.hierarchy.tree.kernel_pids) if self.parent is None else []
        tids = [*kernel, *(tid for process in self.processes() for tid in process.tids)]
        return "".join(f"{tid}\n" for tid in tids)

    def _read_procs(self) -> str:
        kernel = sorted(self.hierarchy.tree.kernel_pids) if self.parent is None else []
        return "".join(f"{pid}\n" for pid in [*kernel, *(process.pid for process in self.processes())])

    def _move(self, data: bytes) -> None:
        self.hierarchy.move(formats.parse_pid(data), self)


class V1Hierarchy:
    """One mounted hierarchy of cgroup v1.

    ``factories``: the controllers bound to the hierarchy. ``tree``: the v2 tree, in which the work is simulated.

    Groups of the v2 tree appear and disappear here as they do there; a group created only here has no
    simulated work until one with that path is created.

    A move affects the whole process of a task, in this hierarchy only; the process's work is still accounted
    in its previous group.
    """

    def __init__(self, directory: Directory, factories: dict[str, Factory], tree: CgroupTree) -> None:
        self.factories, self.tree = factories, tree
        self._moved: dict[int, V1Group] = {}
        self.root = V1Group(self, None, "", directory)
        for group in tree.root.walk():
            self._follow(group)
        tree.on_made.append(self._follow)
        tree.on_removed.append(self._forget)

    def find(self, path: str) -> V1Group | None:
        """The group at a path, or None."""
        here: V1Group | None = self.root
        for part in path.split("/"):
            if part and here is not None:
                here = here.children.get(part)
        return here

    def processes_in(self, group: V1Group) -> list[Process]:
        """Processes of one group: those moved here, and unmoved ones whose v2 group has this path."""
        own = group.bound.processes if group.bound is not None else []
        found = [process for process in own if self._moved.get(process.pid, group) is group]
        if self._moved:
            known = {process.pid for process in found}
            everywhere = self.tree.root.all_processes()
            found += [p for p in everywhere if self._moved.get(p.pid) is group and p.pid not in known]
        return found

    def move(self, tid: int, to: V1Group) -> None:
        """Move the process of a thread.

        OSError: EINVAL for a kernel thread, ESRCH if there is no such thread, or an error of
        ``check_tasks``.
        """
        if tid in self.tree.kernel_pids:
            raise refuse(errno.EINVAL)
        process = next((p for p in self.tree.root.all_processes() if tid in p.tids), None)
        if process is None:
            raise refuse(errno.ESRCH)
        for controller in to.controllers.values():
            controller.check_tasks()
        self._moved[process.pid] = to

    def _follow(self, group: SimCgroup) -> None:
        parts: Sequence[str] = [part for part in group.path.split("/") if part]
        here = self.root
        for part in parts:
            if part not in here.children:
                here.make_child(part, managed=True)
            here = here.children[part]

    def _forget(self, group: SimCgroup) -> None:
        mine = self.find(group.path)
        if mine is not None and not mine.children and not mine.processes():
            mine.remove()
