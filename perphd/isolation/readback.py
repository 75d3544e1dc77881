"""Reads settings back for one plan, with each directory and its parent read at most once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from posixpath import basename, dirname

from perphd.domain.errors import Gone, KernelError
from perphd.domain.quick import maker
from perphd.host.cgroup.group import Cgroup, Knob, parent_list
from perphd.host.fs import Identity, KernelFs, read_text
from perphd.host.systemd_fs import UNIT_DEVICE
from perphd.isolation.backends.cgroupfs import without_gone_disks
from perphd.isolation.descendants import DescendantList, descendant_lists
from perphd.isolation.journal import Journal
from perphd.isolation.planner import FileState

_make_file = maker(FileState)


class ReadBack:
    """Reads knobs together with their journaled originals.

    ``identities``: identity of every directory read since ``begin``.
    """

    def __init__(self, fs: KernelFs, journal: Journal) -> None:
        self._fs, self._journal = fs, journal
        self._knobs: dict[tuple[str, str], Knob] = {}
        self._around: dict[str, str] = {}
        self.identities: dict[str, Identity] = {}

    def begin(self, cgroups: Iterable[str]) -> None:
        """Start a new plan about these cgroups: drop cached identities, parents' lists and other cgroups."""
        kept = frozenset(cgroups)
        self._knobs = {place: knob for place, knob in self._knobs.items() if place[0] in kept}
        self.identities.clear()
        self.forget_around()

    def forget_around(self) -> None:
        """Drop the cached parents' lists, which may have changed."""
        self._around.clear()

    def is_there(self, group: Cgroup, settings: Sequence[str]) -> bool:
        """True if the group exists. The knobs of these settings are about to be read."""
        known = self._knobs.get((group.path, settings[0]))
        if known is not None:
            try:
                identity = self.identities[known.directory] = self._fs.identity(known.directory)
            except KernelError:
                return group.exists()
            if identity[0] != UNIT_DEVICE:  # a unit stays the same while it is stopped
                return True
        return group.exists()

    def knob(self, group: Cgroup, setting: str) -> tuple[Knob, Identity, tuple[FileState, ...]] | str:
        """A knob with its files' texts, or why it does not exist. The set of files is cached until one is gone.

        Raises:
            KernelError: the files cannot be read; Gone if the group vanished meanwhile.
        """
        place = (group.path, setting)
        if (known := self._knobs.get(place)) is not None:
            try:
                return known, *self._files(known)
            except Gone:
                del self._knobs[place]
        knob = group.knob(setting)
        if isinstance(knob, str):
            return knob
        self._knobs[place] = knob
        return knob, *self._files(knob)

    def _files(self, knob: Knob) -> tuple[Identity, tuple[FileState, ...]]:
        # Read once per plan. If the directory is replaced meanwhile, the write into it is refused.
        if (identity := self.identities.get(knob.directory)) is None:
            identity = self.identities[knob.directory] = self._fs.identity(knob.directory)
        return identity, tuple([self.file(path, identity) for path in knob.paths])

    def file(self, path: str, identity: Identity, text: str | None = None) -> FileState:
        """One file of a directory with this identity; ``text``: its content, if already known."""
        text = read_text(self._fs, path) if text is None else text
        original = self._journal.originals.get(path)
        if original is None or original.identity != identity:
            return _make_file(path, text, None)
        return _make_file(path, text, without_gone_disks(self._fs, path, original.text, text))

    def below(self, top: FileState) -> tuple[DescendantList, ...]:
        """The lists of the group's descendants, parents first; see ``descendant_lists``."""
        found = descendant_lists(self._fs, self._journal, top)
        for item in found:
            self.identities[dirname(item.file.path)] = item.identity
        return found

    def around(self, directory: str, lead: str) -> str:
        """``parent_list`` of this file, cached for all children of a parent."""
        key = f"{dirname(directory)}/{basename(lead)}"
        if key not in self._around:
            self._around[key] = parent_list(self._fs, lead)
        return self._around[key]
