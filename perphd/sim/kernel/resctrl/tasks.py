"""The group of each thread. Threads themselves are provided by a ``TaskSource``."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Protocol

from perphd.sim.kernel.resctrl.groups import Group, Kind
from perphd.sim.kernel.resctrl.numbers import BLANKS, signed_int, text_of
from perphd.sim.kernel.resctrl.status import CommandStatus
from perphd.sim.kernel.vfs import caller_uid, refuse


class TaskSource(Protocol):
    """The threads of the simulated machine, shared with the cgroup trees."""

    def threads(self) -> Iterable[int]:
        """TIDs of all live threads, in the kernel's order (processes by age, each with its threads)."""

    def exists(self, tid: int) -> bool:
        """True for a live thread and for a zombie."""

    def caller(self) -> int:
        """TID of the thread that makes the present system call; ``0`` written to a tasks file means this thread."""

    def may_move(self, uid: int, tid: int) -> bool:
        """True if this user may move the thread, as root or as its owner."""


class Threads:
    """A plain ``TaskSource`` for tests and for use without a cgroup tree: processes with their threads."""

    def __init__(self, processes: Iterable[tuple[int, ...]] = ((1,), (2,)), caller: int = 1) -> None:
        self._processes = {tids[0]: list(tids) for tids in processes}
        self._zombies: set[int] = set()
        self._caller = caller
        self.owner_uid = 0

    def threads(self) -> Iterator[int]:
        """Every thread that is not a zombie."""
        for tids in self._processes.values():
            yield from (tid for tid in tids if tid not in self._zombies)

    def exists(self, tid: int) -> bool:
        """True if the thread was started and not yet reaped."""
        return any(tid in tids for tids in self._processes.values())

    def caller(self) -> int:
        """TID of the thread that was passed to the constructor."""
        return self._caller

    def may_move(self, uid: int, tid: int) -> bool:
        """True for an existing thread if ``uid`` is root or ``owner_uid``, which owns all threads."""
        return uid in (0, self.owner_uid) and self.exists(tid)

    def start(self, pid: int, *more_tids: int) -> None:
        """Start a process with its threads; then call ``ResctrlTree.forked``."""
        self._processes[pid] = [pid, *more_tids]

    def end(self, pid: int, *, zombie: bool = False) -> None:
        """End the process, or make it a zombie until it is ended again."""
        if zombie:
            self._zombies.update(self._processes[pid])
            return
        for tid in self._processes.pop(pid):
            self._zombies.discard(tid)


class Membership:
    """The CLOSID and RMID of every thread; an unmoved one is in the root group."""

    def __init__(self, source: TaskSource, status: CommandStatus) -> None:
        self._source, self._status = source, status
        self._ids: dict[int, tuple[int, int]] = {}

    def ids(self, tid: int) -> tuple[int, int]:
        """(CLOSID, RMID) of a thread."""
        return self._ids.get(tid, (0, 0))

    def forked(self, parent_tid: int, child_tid: int) -> None:
        """Put a child into its parent's group."""
        if parent_tid in self._ids:
            self._ids[child_tid] = self._ids[parent_tid]
        else:
            self._ids.pop(child_tid, None)

    def exited(self, tid: int) -> None:
        """Forget a thread, whose number may be reused."""
        self._ids.pop(tid, None)

    def forget(self) -> None:
        """Put all threads into the root group (umount)."""
        self._ids.clear()

    def members(self, group: Group, *, can_allocate: bool) -> Iterator[int]:
        """Threads that the group's tasks file lists. A control group lists those of its monitor groups too.

        On a machine that can only monitor, control groups including the root list none, because the kernel
        compares CLOSIDs only if it can allocate.
        """
        if group.kind is Kind.CONTROL and not can_allocate:
            return
        for tid in self._source.threads():
            if self._is_in(group, self.ids(tid)):
                yield tid

    def hand_over(self, group: Group, heir: Group) -> None:
        """Move all threads of a group that is removed to ``heir``."""
        for tid, ids in list(self._ids.items()):
            if self._is_in(group, ids):
                self._ids[tid] = (heir.closid, heir.rmid)

    @staticmethod
    def _is_in(group: Group, ids: tuple[int, int]) -> bool:
        closid, rmid = ids
        return rmid == group.rmid if group.kind is Kind.MONITOR else closid == group.closid

    def write(self, group: Group, data: bytes) -> None:
        """One write to ``tasks`` on a kernel that accepts one TID per write.

        OSError: EINVAL for other text, or if a monitor group's parent lacks the thread; ESRCH if there is no
        such thread; EPERM without the right to move it.
        """
        tid = signed_int(text_of(data).strip(BLANKS))
        if tid is None or tid < 0:
            raise refuse(errno.EINVAL)
        self._status.clear()
        self._move(tid, group)

    def write_list(self, group: Group, data: bytes) -> None:
        """One write to ``tasks`` on a kernel that accepts lists: in order, until the first failure."""
        self._status.clear()
        rest = text_of(data)
        while rest and not rest.startswith("\n"):
            part, _, rest = rest.partition(",")
            word = part.strip(BLANKS)
            tid = signed_int(word)
            if tid is None:
                self._status.say(f"Task list parsing error pid {word}")
                raise refuse(errno.EINVAL)
            if tid < 0:
                self._status.say(f"Invalid pid {tid}")
                raise refuse(errno.EINVAL)
            try:
                self._move(tid, group)
            except OSError:
                self._status.say(f"Error while processing task {tid}")
                raise

    def _move(self, tid: int, group: Group) -> None:
        if tid == 0:
            tid = self._source.caller()
        elif not self._source.exists(tid):
            self._status.say(f"No task {tid}")
            raise refuse(errno.ESRCH)
        if not self._source.may_move(caller_uid.get(), tid):
            self._status.say(f"No permission to move task {tid}")
            raise refuse(errno.EPERM)
        if group.kind is Kind.MONITOR and self.ids(tid)[0] != group.closid:
            self._status.say("Can't move task to different control group")
            raise refuse(errno.EINVAL)
        self._ids[tid] = (group.closid, group.rmid)
