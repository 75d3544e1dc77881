"""Kills all processes of a workload to make room. Irreversible, so the workload's owner must have allowed it.

On cgroup v2 this uses ``cgroup.kill`` (Linux 5.14), which also reaches processes that fork meanwhile. If the cgroup is
in no cgroup2 tree, every process of the v1 cgroup and of its descendants gets SIGKILL, repeatedly until none is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from perphd.domain.errors import Gone, KernelError, Unsupported
from perphd.domain.plan import Stage, Write
from perphd.host.cgroup.group import descendants
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.fs import Identity, KernelFs, read_text, write_within

KILL: Final = "cgroup.kill"
KNOB: Final = "ended"
_ROUNDS: Final = 20
"""Rounds of signals before a group that keeps forking is reported as not ended."""


class Ender:
    """Kills workloads.

    Args:
        refuse: returns why a cgroup must not be written directly, or None.
        on_write: called with every write and its outcome.
        kill: sends a signal (cgroup v1 only); None where no signals can be sent.
    """

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
        """Identity of the cgroup at this path; None if it cannot be read."""
        for tree in (self._hierarchies.unified, self._hierarchies.of("memory")):
            with suppress(KernelError):
                if tree is not None:
                    return self._fs.identity(tree.path(cgroup))
        return None

    def end(self, workload: str, cgroup: str, identity: Identity | None) -> str:
        """Kill every process of this cgroup; returns why that failed, or an empty text.

        ``identity``: the intended cgroup's. A different cgroup at the same path is left alone.
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
        """True if the cgroup2 cgroup holds the processes; on hybrid hosts they may be only in the v1 cgroup."""
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
            return path, "this host has neither cgroup.kill nor signals"
        try:
            for _ in range(_ROUNDS):
                pids = self._pids(tree.path(cgroup))
                if min(pids, default=1) <= 0:  # a signal to pid 0 goes to perphd's own process group
                    return path, "one of its processes is in a pid namespace that perphd cannot see"
                if not pids:
                    return path, ""
                for pid in pids:
                    with suppress(ProcessLookupError):
                        self._kill(pid, signal.SIGKILL)
                if not self._pids(tree.path(cgroup)) - pids:
                    return path, ""  # no new processes: all have been sent the signal
        except (KernelError, OSError) as exc:
            return path, str(exc)
        return path, "its processes fork faster than signals kill them"

    def _pids(self, directory: str) -> set[int]:
        found: set[int] = set()
        for each in (directory, *descendants(self._fs, directory)):
            # A group may be removed meanwhile. The processes of a threaded group are listed in its ancestor.
            with suppress(Gone, Unsupported):
                found |= {int(line) for line in read_text(self._fs, f"{each}/cgroup.procs").split()}
        return found
