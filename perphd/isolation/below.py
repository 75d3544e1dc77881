"""The groups below one that perphd has confined: which lists of CPUs and memory nodes are their own.

Only cgroup v1 needs this: there every group below has lists of its own, which must lie within those above, and who
makes a group (runc, docker, kubelet, ``cgroup.clone_children``) copies what the group above has at that moment. While
perphd confines that one, the copy is perphd's value and no wish of anybody's: what the new group is to have in the end
is what the group above had. On v2 a new group has no list of its own, and the effective one follows by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from posixpath import basename, dirname

from perphd.domain.errors import Gone
from perphd.host.cgroup.group import descendants
from perphd.host.cgroup.knobs import LIST_SETTINGS, same
from perphd.host.fs import Identity, KernelFs, read_text
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.planner import FileState
from perphd.isolation.value import is_own, is_what_is_left


@dataclass(frozen=True, slots=True)
class Below:
    """A list of a group below. ``recorded``: its original is on record; else it is None, or that of the group above.

    ``behind``: a copy of what the group above had, which has another list by now.
    """

    file: FileState
    identity: Identity
    recorded: bool
    behind: bool = False

    @property
    def is_copy(self) -> bool:
        """True if the group was made while the one above was confined, and has its list from there."""
        return not self.recorded and self.file.original is not None


def look_below(fs: KernelFs, journal: Journal, top: FileState) -> tuple[Below, ...]:
    """The lists of ``top``'s name in the groups below, parents first; empty ones bind nobody.

    A copy cannot be told from the same list set by hand in a group that is new; groups that were there before the one
    above was confined are on record, whatever their lists.
    """
    name = basename(top.path)
    files = {dirname(top.path): top}
    set_by_perphd = {dirname(top.path): journal.intents(top.path)}
    found: list[Below] = []
    for group in descendants(fs, dirname(top.path)):
        path = f"{group}/{name}"
        with suppress(Gone):
            identity, now = fs.identity(group), read_text(fs, path)
            if not now:
                continue
            entry, above = journal.originals.get(path), files.get(dirname(group))
            values = journal.intents(path)
            if entry is None or entry.identity != identity:
                values = set_by_perphd.get(dirname(group), ())
                original = above.original if above is not None and _is_copy(now, above, values) else None
                behind = original is not None and above is not None and not same(path, above.now, now)
                item = Below(FileState(path, now, original), identity, False, behind)
            elif is_untouched(journal, entry) and not _is_as_found(entry, now, above):
                item = Below(
                    FileState(path, now), identity, False
                )  # set anew, and not by perphd: that counts
            else:
                item = Below(FileState(path, now, entry.text), identity, True)
            files[group], set_by_perphd[group] = item.file, values
            found.append(item)
    return tuple(found)


def is_untouched(journal: Journal, entry: Original) -> bool:
    """True if this list is on record only so that it is known to have been there: perphd was never to write it."""
    above = f"{dirname(dirname(entry.path))}/{basename(entry.path)}"
    return entry.knob in LIST_SETTINGS and above in journal.originals and not journal.intents(entry.path)


def _is_as_found(entry: Original, now: str, above: FileState | None) -> bool:
    """True if it reads as it did, but for what the kernel itself may have taken out."""
    return same(entry.path, entry.text, now) or (
        above is not None and is_what_is_left(entry.text, now, above.now)
    )


def _is_copy(now: str, above: FileState, values: Iterable[str]) -> bool:
    """True if this list is what the group above, which is confined, has or was given earlier (``values``)."""
    if not above.original:  # nothing, or no list of its own to go back to
        return False
    return same(above.path, above.now, now) or is_own(above.path, now, above.original, values)
