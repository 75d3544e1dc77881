"""How many writes one transaction makes: all, or no more than fit its deadline as the kernel answers lately."""

from __future__ import annotations

from collections.abc import Callable

from perphd.domain.plan import ChangeSet, NotEnforceable, Write


class Pieces:
    """Cuts a plan that took too long into pieces, each a transaction of its own.

    The order of a plan's writes makes that safe: whoever stops after any of them leaves no LRA worse off. What is left
    is planned anew from what is read then.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._most: int | None = None
        self.more = False
        """True if the last plan was cut."""
        self.unfinished = False
        """True if one was, and none has been through as a whole since."""

    def cut(self, changes: ChangeSet, is_apart: Callable[[Write], bool]) -> ChangeSet:
        """The writes that come first; what is left is told. ``is_apart``: of those that are not of the transaction."""
        writes, most = changes.writes, self._most
        if most is not None and len(writes) > most:
            writes = tuple(write for write in writes if not is_apart(write))
        self.more = most is not None and len(writes) > most
        self.unfinished = self.more or (self.unfinished and bool(changes.writes))
        if most is None or not self.more:
            return changes
        end = most
        while end and writes[end].key == writes[end - 1].key:
            end -= 1  # what belongs together stays together, if that leaves anything
        end = end or most
        why = f"comes next: with these writes the transaction took longer than {self._deadline_s:g} s"
        left = dict.fromkeys(write.key for write in writes[end:])
        told = tuple(NotEnforceable(*key, why) for key in left)
        apart = filter(is_apart, changes.writes)
        return ChangeSet((*writes[:end], *apart), (*changes.skipped, *told), changes.reason)

    def too_slow(self, made: int) -> None:
        """The deadline had passed after so many writes."""
        self._most = max(1, made // 2)

    def in_time(self, made: int, took_s: float) -> None:
        """So many writes took so long: if the plan was cut for them, the next piece may be larger."""
        self.unfinished = self.more
        if self._most is None or not self.more:
            return
        if took_s <= 0 or (fit := int(made * self._deadline_s / (2 * took_s))) > 1_000_000:
            self._most = None
        else:
            self._most = max(self._most, fit)
