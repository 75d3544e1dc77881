"""Write thread ids to ``tasks``: one per write up to Linux 6.x, a comma-separated list where supported.

Only the named thread moves, never its whole process; children inherit the group. A thread that has ended is
not an error.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rdt.access import Access
from rdt.errors import Gone, Invalid, ResctrlError
from rdt.names import GroupRef
from rdt.schemata import MAX_WRITE_BYTES

_OTHER_CONTROL_GROUP = "different control group"
_STOPPED = re.compile(r"Error while processing task ([0-9]+)")
_LONGEST_TID = len("4194304,")
_BATCH = MAX_WRITE_BYTES // _LONGEST_TID


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of moving individual threads."""

    accepted: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    """Threads that had ended."""
    elsewhere: frozenset[int] = frozenset()
    """Threads not moved into a monitor group, because they are not in its control group."""

    def __or__(self, other: Moved) -> Moved:
        return Moved(self.accepted | other.accepted, self.gone | other.gone, self.elsewhere | other.elsewhere)


class TaskWriter:
    """Writes tasks files and remembers whether this kernel accepts lists (None: unknown)."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.takes_lists: bool | None = None

    def move(self, group: GroupRef, tids: Iterable[int]) -> Moved:
        """Move each thread once. Raises Gone if the group vanished, Invalid for ids below 1, and kernel errors."""
        waiting = sorted(set(tids))
        if waiting and waiting[0] <= 0:
            # 0 would move the writing thread. /proc and cgroup files show 0 for tasks of another PID
            # namespace.
            path = self._access.path(group.relative, "tasks")
            raise Invalid(path, doing="writing", value=str(waiting[0]), reason="not a thread id")
        moved = Moved()
        for start in range(0, len(waiting), _BATCH):
            moved |= self._move_batch(group, waiting[start : start + _BATCH])
        return moved

    def _move_batch(self, group: GroupRef, tids: list[int]) -> Moved:
        moved = Moved()
        while len(tids) > 1 and self.takes_lists is not False:
            try:
                self._write(group, ",".join(map(str, tids)))
            except ResctrlError as error:
                if error.errno not in (errno.EINVAL, errno.ESRCH):
                    raise
                stopped = self._stopped_at(error, tids)
                if stopped is None:
                    one_by_one = self._move_singly(group, tids)
                    if error.errno == errno.EINVAL and one_by_one.accepted and not one_by_one.elsewhere:
                        self.takes_lists = False  # the threads are valid, so this kernel refuses lists
                    return moved | one_by_one
                self.takes_lists = True
                # The kernel moved all threads before this one and stopped. Write this one alone to learn why.
                moved |= Moved(frozenset(tids[:stopped])) | self._move_singly(group, [tids[stopped]])
                tids = tids[stopped + 1 :]
            else:
                self.takes_lists = True
                return moved | Moved(frozenset(tids))
        return moved | self._move_singly(group, tids)

    @staticmethod
    def _stopped_at(error: ResctrlError, tids: list[int]) -> int | None:
        """Index in the list at which the kernel reports that it stopped; None if it does not report it."""
        match = _STOPPED.search(error.status)
        return tids.index(int(match[1])) if match and int(match[1]) in tids else None

    def _move_singly(self, group: GroupRef, tids: list[int]) -> Moved:
        accepted, gone, elsewhere = set(), set(), set()
        for tid in tids:
            try:
                self._write(group, str(tid))
            except Gone as error:
                if error.errno != errno.ESRCH:
                    raise
                gone.add(tid)
            except Invalid as error:
                if _OTHER_CONTROL_GROUP not in error.status:
                    raise
                elsewhere.add(tid)
            else:
                accepted.add(tid)
        return Moved(frozenset(accepted), frozenset(gone), frozenset(elsewhere))

    def _write(self, group: GroupRef, tids: str) -> None:
        self._access.command(f"{tids}\n", group.relative, "tasks")
