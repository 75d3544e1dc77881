"""Ending all processes of a workload that makes room. It cannot be undone, so it takes an owner who allowed it.

cgroup v2 does it by ``cgroup.kill`` (Linux 5.14), which also reaches processes that fork meanwhile. Where the group is
in no cgroup2 tree, every process of the v1 group and of the groups below it gets SIGKILL, until none is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.plan import Stage, Write
from perphd.host.cgroup.group import descendants
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.fs import Identity, KernelFs, read_text, write_within

KILL: Final = "cgroup.kill"
KNOB: Final = "ended"
_ROUNDS: Final = 20
"""Rounds of signals: a group that forks faster than that is reported as not ended."""


class Ender:
    """Ends workloads. ``refuse``: says why a group must not be written directly; ``kill``: sends a signal (v1)."""

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        refuse: Callable[[str], str | None],
        on_write: Callable[[Write, str], None] | None = None,
        kill: Callable[[int, int], None] | None = os.kill,
    ) -> None:
        self._fs, self._hierarchies, self._refuse = fs, hierarchies, refuse
        self._on_write, self._kill = on_write, kill

    def identity(self, cgroup: str) -> Identity | None:
        """Which group has this path now; None: none that can be told."""
        for tree in (self._hierarchies.unified, self._hierarchies.of("memory")):
            with suppress(KernelError):
                if tree is not None:
                    return self._fs.identity(tree.path(cgroup))
        return None

    def end(self, workload: str, cgroup: str, identity: Identity | None) -> str:
        """End every process of this group now; returns why that was not possible, or empty.

        ``identity``: of the group that is meant. Whoever has its path meanwhile is left alone.
        """
        if reason := self._refuse(cgroup):
            return reason
        if identity is None or self.identity(cgroup) != identity:
            return "its control group is gone, or another one has its path"
        unified = self._hierarchies.unified
        if (
            unified is not None
            and self._fs.exists(unified.path(cgroup, KILL))
            and self._is_whole(unified, cgroup)
        ):
            path, problem = unified.path(cgroup, KILL), self._by_file(unified.path(cgroup, KILL))
        else:
            path, problem = self._by_signals(cgroup)
        if self._on_write is not None:
            write = Write(workload, KNOB, path, "1", "", Stage.SHRINK)
            self._on_write(write, f"failed: {problem}" if problem else "written")
        return problem

    def _is_whole(self, unified: Hierarchy, cgroup: str) -> bool:
        """Whether the cgroup2 group holds the processes: on hybrid hosts they may be in v1 groups alone."""
        with suppress(KernelError):
            return bool(self._pids(unified.path(cgroup))) or self._hierarchies.of("memory") in (None, unified)
        return False

    def _by_file(self, path: str) -> str:
        try:
            write_within(self._fs, path, b"1\n", self._fs.identity(path.rpartition("/")[0]))
        except KernelError as exc:
            return str(exc)
        return ""

    def _by_signals(self, cgroup: str) -> tuple[str, str]:
        tree = self._hierarchies.of("memory") or self._hierarchies.unified
        path = cgroup if tree is None else tree.path(cgroup, "cgroup.procs")
        if tree is None or self._kill is None:
            return path, "this host has no cgroup.kill, and no signals"
        try:
            for _ in range(_ROUNDS):
                pids = self._pids(tree.path(cgroup))
                if min(pids, default=1) <= 0:  # to signal 0 is to signal one's own process group
                    return path, "a process of it is in a pid namespace that cannot be seen from here"
                if not pids:
                    return path, ""
                for pid in pids:
                    with suppress(ProcessLookupError):
                        self._kill(pid, signal.SIGKILL)
                if not self._pids(tree.path(cgroup)) - pids:
                    return path, ""  # nobody new: those that got the signal are on their way
        except (KernelError, OSError) as exc:
            return path, str(exc)
        return path, "new processes appear faster than signals end them"

    def _pids(self, directory: str) -> set[int]:
        found: set[int] = set()
        for each in (directory, *descendants(self._fs, directory)):
            found |= {int(line) for line in read_text(self._fs, f"{each}/cgroup.procs").split()}
        return found
