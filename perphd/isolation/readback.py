"""Reading settings back for one plan: each directory, and what surrounds it, is asked no more often than needed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from posixpath import basename, dirname

from perphd.domain.errors import Gone
from perphd.domain.quick import maker
from perphd.host.cgroup.group import Cgroup, Knob, parent_list
from perphd.host.fs import Identity, KernelFs, read_text
from perphd.isolation.below import Below, look_below
from perphd.isolation.journal import Journal
from perphd.isolation.planner import FileState

_make_file = maker(FileState)


class ReadBack:
    """Reads knobs together with their journaled originals.

    ``identities``: of every directory read since ``begin``, as it was then.
    """

    def __init__(self, fs: KernelFs, journal: Journal) -> None:
        self._fs, self._journal = fs, journal
        self._knobs: dict[tuple[str, str], Knob] = {}
        self._around: dict[str, str] = {}
        self.identities: dict[str, Identity] = {}

    def begin(self, cgroups: Iterable[str]) -> None:
        """A new plan, about these cgroups: forget identities, surroundings, and other cgroups."""
        kept = frozenset(cgroups)
        self._knobs = {place: knob for place, knob in self._knobs.items() if place[0] in kept}
        self.identities.clear()
        self.forget_around()

    def forget_around(self) -> None:
        """What parents give may have changed: it is looked up anew."""
        self._around.clear()

    def knob(self, group: Cgroup, setting: str) -> tuple[Knob, Identity, tuple[FileState, ...]] | str:
        """A knob with what its files read, or why there is none. Which files there are is asked until one is gone.

        Raises:
            KernelError: they cannot be read; Gone if the group vanished meanwhile.
        """
        place = (group.path, setting)
        if (known := self._knobs.get(place)) is not None:
            with suppress(Gone):
                return known, *self._files(known)
            del self._knobs[place]
        knob = group.knob(setting)
        if isinstance(knob, str):
            return knob
        self._knobs[place] = knob
        return knob, *self._files(knob)

    def _files(self, knob: Knob) -> tuple[Identity, tuple[FileState, ...]]:
        # Asked once a plan: if another group comes to be there meanwhile, the write into it is refused.
        if (identity := self.identities.get(knob.directory)) is None:
            identity = self.identities[knob.directory] = self._fs.identity(knob.directory)
        return identity, tuple([self.file(path, identity) for path in knob.paths])

    def file(self, path: str, identity: Identity, text: str | None = None) -> FileState:
        """One file of a directory of this identity; ``text``: what it reads, if that is known already."""
        text = read_text(self._fs, path) if text is None else text
        original = self._journal.originals.get(path)
        known = original is not None and original.identity == identity
        return _make_file(path, text, original.text if original is not None and known else None)

    def below(self, top: FileState) -> tuple[Below, ...]:
        """The lists of the groups below this one's, parents first; see ``look_below``."""
        found = look_below(self._fs, self._journal, top)
        for item in found:
            self.identities[dirname(item.file.path)] = item.identity
        return found

    def around(self, directory: str, lead: str) -> str:
        """``parent_list`` of this file, but asked once for all children of a parent."""
        key = f"{dirname(directory)}/{basename(lead)}"
        if key not in self._around:
            self._around[key] = parent_list(self._fs, lead)
        return self._around[key]
