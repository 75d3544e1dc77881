"""The cgroup v2 hierarchy: creates, finds and removes groups, and tracks tasks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from perphd.domain.cpuset import CpuSet
from perphd.sim.counters import Process
from perphd.sim.kernel.cgroup2 import memory, threads
from perphd.sim.kernel.cgroup2.group import SimCgroup
from perphd.sim.kernel.cgroup2.rules import CONTROLLERS, Kernel
from perphd.sim.kernel.vfs import Directory, File, caller_uid, refuse

KTHREADD = 2
"""Parent of all kernel threads: it lives in the root and cannot be moved."""


class CgroupTree:
    """The whole hierarchy below one directory.

    Args:
        directory: its mount point.
        online: online CPUs; change them with ``set_online``.
        nodes: memory nodes.
        nr_cpus: maximum number of CPUs of the kernel: larger numbers are ERANGE.
        kernel: the kernel to simulate.

    Hooks for the simulation of work: ``on_memory_max(group)`` after a write of memory.max (by default it
    reclaims page cache and kills), and ``on_kill(group, process)`` when a process is killed (by default it
    just vanishes). ``on_made`` and ``on_removed`` are called when groups are created and removed.

    ``kernel_pids`` cannot be moved; ``zombies`` (process ids) can, and are not listed anywhere.
    """

    def __init__(
        self, directory: Directory, online: CpuSet, nodes: CpuSet, nr_cpus: int, kernel: Kernel | None = None
    ) -> None:
        self.online, self.nodes, self.nr_cpus = online, nodes, nr_cpus
        self.kernel = kernel or Kernel()
        self.on_memory_max: Callable[[SimCgroup], None] = memory.enforce_max
        self.on_kill: Callable[[SimCgroup, Process], None] = lambda group, process: group.processes.remove(
            process
        )
        self.on_made: list[Callable[[SimCgroup], None]] = []
        self.on_removed: list[Callable[[SimCgroup], None]] = []
        self.kernel_pids: set[int] = {KTHREADD}
        self.zombies: set[int] = set()
        self._guests: dict[int, SimCgroup] = {}  # threads in another group than their process
        self.root = SimCgroup(self, None, "", directory)

    def find(self, path: str) -> SimCgroup | None:
        """The group at a cgroup path (``/batch/pi``), or None."""
        here: SimCgroup | None = self.root
        for part in path.split("/"):
            if part and here is not None:
                here = here.children.get(part)
        return here

    def make(self, path: str, controllers: Sequence[str] = CONTROLLERS) -> SimCgroup:
        """The group at this path, created with its parents if missing; all ancestors enable ``controllers``."""
        here = self.root
        for part in path.strip("/").split("/"):
            here.write_subtree(" ".join(f"+{c}" for c in controllers).encode())
            here = here.children.get(part) or here.add_child(part)
        return here

    def remove(self, path: str) -> None:
        """Remove a group. OSError: EBUSY with processes or children, ENOENT if there is none."""
        group = self.find(path)
        if group is None or group.parent is None:
            raise refuse(errno.ENOENT)
        group.remove()

    def set_online(self, online: CpuSet) -> None:
        """Change the online CPUs: effective lists follow, written ones stay."""
        self.online = online
        assert self.root.cpuset is not None
        self.root.cpuset.online_changed()

    # -- tasks ----------------------------------------------------------------------------------------

    def pids_of(self, group: SimCgroup) -> list[int]:
        """The content of cgroup.procs: for the root of a threaded subtree, the processes of the whole subtree."""
        kernel = sorted(self.kernel_pids) if group.parent is None else []
        if threads.is_thread_root(group):
            return [p.pid for below in group.walk() for p in below.processes]
        return [*kernel, *(process.pid for process in group.processes)]

    def tids_of(self, group: SimCgroup) -> list[int]:
        """The content of cgroup.threads."""
        kernel = sorted(self.kernel_pids) if group.parent is None else []
        own = [tid for process in group.processes for tid in process.tids if tid not in self._guests]
        return [*kernel, *own, *self.guests_of(group)]

    def guests_of(self, group: SimCgroup) -> list[int]:
        """Threads in this group whose process is in another one."""
        if not self._guests:
            return []
        return [
            tid for tid, where in self._guests.items() if where is group and self._home_of(tid) is not None
        ]

    def move(self, pid: int, to: SimCgroup) -> None:
        """Move a process.

        OSError: EINVAL for a kernel thread, ESRCH if there is no such process, EACCES without the right to
        move it; EOPNOTSUPP and EBUSY as for ``threads.check_move_into``.
        """
        if pid in self.kernel_pids:
            raise refuse(errno.EINVAL)
        if pid in self.zombies:
            return
        source = next((g for g in self.root.walk() if any(p.pid == pid for p in g.processes)), None)
        if source is None:
            raise refuse(errno.ESRCH)
        self._check_rights(source, to)
        threads.check_move_into(to)
        process = next(p for p in source.processes if p.pid == pid)
        for tid in process.tids:
            self._guests.pop(tid, None)
        source.processes.remove(process)
        to.processes.append(process)

    def move_thread(self, tid: int, to: SimCgroup) -> None:
        """Move one thread within its threaded subtree. OSError: EOPNOTSUPP if ``to`` is outside; as for ``move``."""
        if tid in self.kernel_pids:
            raise refuse(errno.EINVAL)
        home = self._home_of(tid)
        if home is None:
            raise refuse(errno.ESRCH)
        source = self._guests.get(tid, home)
        self._check_rights(source, to)
        threads.check_move_into(to)
        if threads.domain_of(source) is not threads.domain_of(to):
            raise refuse(errno.EOPNOTSUPP)
        self._guests.pop(tid, None)
        if to is not home:
            self._guests[tid] = to

    def _home_of(self, tid: int) -> SimCgroup | None:
        return next((g for g in self.root.walk() for p in g.processes if tid in p.tids), None)

    def _check_rights(self, source: SimCgroup, to: SimCgroup) -> None:
        """Check the right to move: it requires write access to cgroup.procs of the closest common ancestor."""
        uid = caller_uid.get()
        if uid == 0:
            return
        above = set(map(id, source.ancestry()))
        common = next(group for group in to.ancestry() if id(group) in above)
        procs = common.directory.children["cgroup.procs"]
        assert isinstance(procs, File)
        procs.check_open(uid, reading=False, writing=True)
