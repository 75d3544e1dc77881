"""CPU and memory-node lists of the cgroups inside a confined cgroup.

Only cgroup v1 needs this. There every cgroup has its own list, which must lie within its parent's, and whoever creates
a cgroup (runc, docker, kubelet, ``cgroup.clone_children``) copies the parent's present list. While perphd confines the
parent, such a copy holds perphd's value, which nobody requested for it; restore must give the new cgroup the parent's
original list. On v2 a new cgroup has no list of its own and inherits the effective one.
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
from perphd.isolation.backends.cgroupfs import is_own, is_what_is_left
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.planner import FileState


@dataclass(frozen=True, slots=True)
class DescendantList:
    """The list of a descendant cgroup.

    ``file.original``: the recorded original, or for a copy the parent's; else None. ``recorded``: the journal has the
    original. ``behind``: the list copies an earlier list of the parent.
    """

    file: FileState
    identity: Identity
    recorded: bool
    behind: bool = False

    @property
    def is_copy(self) -> bool:
        """True if the cgroup was created while its parent was confined and copied the parent's list."""
        return not self.recorded and self.file.original is not None


def descendant_lists(fs: KernelFs, journal: Journal, top: FileState) -> tuple[DescendantList, ...]:
    """The lists named like ``top`` in all descendants, parents first; empty lists are left out.

    In a new cgroup, a copy cannot be distinguished from an equal list set by hand. Cgroups that existed before the
    confinement are in the journal, regardless of their lists.
    """
    name = basename(top.path)
    files = {dirname(top.path): top}
    set_by_perphd = {dirname(top.path): journal.intents(top.path)}
    found: list[DescendantList] = []
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
                item = DescendantList(FileState(path, now, original), identity, False, behind)
            elif is_untouched(journal, entry) and not _is_as_found(entry, now, above):
                item = DescendantList(
                    FileState(path, now), identity, False
                )  # another program has set it again, which takes precedence
            else:
                item = DescendantList(FileState(path, now, entry.text), identity, True)
            files[group], set_by_perphd[group] = item.file, values
            found.append(item)
    return tuple(found)


def is_untouched(journal: Journal, entry: Original) -> bool:
    """True if the journal records this list only as existing, and perphd never meant to write it."""
    above = f"{dirname(dirname(entry.path))}/{basename(entry.path)}"
    return entry.knob in LIST_SETTINGS and above in journal.originals and not journal.intents(entry.path)


def _is_as_found(entry: Original, now: str, above: FileState | None) -> bool:
    """True if the list still reads as recorded, apart from CPUs or nodes that the kernel removed."""
    return same(entry.path, entry.text, now) or (
        above is not None and is_what_is_left(entry.text, now, above.now)
    )


def _is_copy(now: str, above: FileState, values: Iterable[str]) -> bool:
    """True if this list equals one that the confined parent has or had (``values``)."""
    if not above.original:  # the parent has no list of its own to restore
        return False
    return same(above.path, above.now, now) or is_own(above.path, now, above.original, values)
