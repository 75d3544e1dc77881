"""The files that every cgroup v2 group has, whatever its controllers are: cgroup.*, PSI and cpu.stat."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2 import cpu, io, memory, threads
from perphd.sim.kernel.cgroup2.rules import CONTROLLERS, THREADED, FileSpec
from perphd.sim.kernel.vfs import Writer, caller_uid, refuse

if TYPE_CHECKING:
    from perphd.sim.kernel.cgroup2.group import SimCgroup


class CoreFiles:
    """Reads of these files, and the effects of writes."""

    def __init__(self, group: SimCgroup) -> None:
        self._group = group
        self._pressure_shown = True

    def files(self) -> list[FileSpec]:
        """The files; the root has different ones."""
        group = self._group
        return [
            FileSpec("cgroup.controllers", lambda: " ".join(group.controllers()) + "\n"),
            FileSpec("cgroup.subtree_control", self._read_subtree, group.write_subtree),
            FileSpec("cgroup.procs", self._read_procs, self._write_procs),
            FileSpec("cgroup.threads", self._read_threads, self._write_threads),
            FileSpec(
                "cgroup.stat", lambda: f"nr_descendants {group.descendants()}\nnr_dying_descendants 0\n"
            ),
            FileSpec("cgroup.max.depth", lambda: _count(group.max_depth), self._write_max_depth),
            FileSpec(
                "cgroup.max.descendants", lambda: _count(group.max_descendants), self._write_max_descendants
            ),
            FileSpec("cgroup.pressure", lambda: f"{int(self._pressure_shown)}\n", self._write_pressure),
            FileSpec("cpu.stat", self._read_cpu_stat),
            *self._pressure_files(),
            *(self._below_root() if group.parent is not None else self._root()),
        ]

    def _below_root(self) -> list[FileSpec]:
        group = self._group
        return [
            FileSpec("cgroup.events", self._read_events),
            FileSpec("cgroup.type", lambda: group.type + "\n", self._write_type),
            FileSpec("cgroup.freeze", lambda: f"{int(group.freeze)}\n", self._write_freeze),
            FileSpec("cgroup.kill", None, self._write_kill),
        ]

    def _root(self) -> list[FileSpec]:
        group = self._group
        return [
            FileSpec("cpuset.cpus.effective", lambda: f"{group.effective_cpus}\n"),
            FileSpec("cpuset.mems.effective", lambda: f"{group.effective_mems}\n"),
            FileSpec("memory.stat", lambda: memory.stat_text(group.memory)),
            FileSpec("memory.numa_stat", lambda: memory.numa_stat_text(group.memory, group.effective_mems)),
            FileSpec("memory.reclaim", None, lambda data: memory.reclaim_file(group, data)),
            FileSpec("io.stat", lambda: io.stat_text(group.io)),
        ]

    def _read_cpu_stat(self) -> str:
        with_bandwidth = self._group.parent is None or self._group.has("cpu")
        return cpu.stat_text(self._group.cpu, with_bandwidth=with_bandwidth, kernel=self._group.tree.kernel)

    def _pressure_files(self) -> list[FileSpec]:
        states = self._group.pressure.items()
        return [
            FileSpec(f"{resource}.pressure", state.text, per_open=self._trigger) for resource, state in states
        ]

    def _trigger(self) -> Writer:
        """The writer of one open file, which accepts one trigger."""
        newer, privileged = self._group.tree.kernel.is_6_12, caller_uid.get() == 0
        least_us = 0 if newer and privileged else 500_000
        multiple_us = 2_000_000 if newer and not privileged else 1  # without CAP_SYS_RESOURCE, since 6.4
        armed = False

        def write(data: bytes) -> None:
            nonlocal armed
            if data and armed:
                raise refuse(errno.EBUSY)
            formats.check_trigger(data, least_us, multiple_us)
            armed = armed or bool(data)

        return write

    def _write_pressure(self, data: bytes) -> None:
        shown = formats.parse_switch(data, errno.ERANGE)
        if shown == self._pressure_shown:
            return
        self._pressure_shown = shown
        for spec in self._pressure_files():
            if shown:
                self._group.put(spec)
            else:
                self._group.directory.remove(spec.name)

    def _read_events(self) -> str:
        return f"populated {int(self._group.populated())}\nfrozen {int(self._group.frozen)}\n"

    def _read_subtree(self) -> str:
        return " ".join(c for c in CONTROLLERS if c in self._group.subtree_control) + "\n"

    def _read_procs(self) -> str:
        if self._group.threaded:
            raise refuse(errno.EOPNOTSUPP)
        return "".join(f"{pid}\n" for pid in self._group.tree.pids_of(self._group))

    def _read_threads(self) -> str:
        return "".join(f"{tid}\n" for tid in self._group.tree.tids_of(self._group))

    def _write_procs(self, data: bytes) -> None:
        self._group.tree.move(formats.parse_pid(data), self._group)

    def _write_threads(self, data: bytes) -> None:
        self._group.tree.move_thread(formats.parse_pid(data), self._group)

    def _write_type(self, data: bytes) -> None:
        if formats.text_of(data) != "threaded":
            raise refuse(errno.EINVAL)
        group = self._group
        domain_only = [c for c in group.controllers() if c not in THREADED]
        was = group.threaded
        threads.make_threaded(group)
        if not was:
            for controller in domain_only:
                group.detach(controller)

    def _write_freeze(self, data: bytes) -> None:
        self._group.freeze = formats.parse_switch(data, errno.ERANGE)

    def _write_kill(self, data: bytes) -> None:
        if formats.parse_int(data) != 1:
            raise refuse(errno.ERANGE)
        if self._group.threaded:
            raise refuse(errno.EOPNOTSUPP)
        for group in list(self._group.walk()):
            for process in list(group.processes):
                self._group.tree.on_kill(group, process)

    def _write_max_depth(self, data: bytes) -> None:
        self._group.max_depth = formats.parse_count(data)

    def _write_max_descendants(self, data: bytes) -> None:
        self._group.max_descendants = formats.parse_count(data)


def _count(limit: int | None) -> str:
    return "max\n" if limit is None else f"{limit}\n"
