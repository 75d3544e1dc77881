"""Reads one section of this host's unit files, merged by systemd's rules.

systemd ignores sections whose names begin with ``X-``, so that other programs may use them (systemd.unit(5)).
A unit's own file and its drop-ins are read, in the folders of administrators and packages; for
``a@b.service`` also those of ``a@.service``. Not read: drop-ins of unit types and name prefixes,
program-generated files (transient units, ``systemctl set-property``, generators), symbolic links, and files
of ordinary users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.errors import KernelError, ParseError
from perphd.host.fs import KernelFs, ReadsStrangers

FOLDERS: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""Folders by precedence: the first one with a file of that name wins. The last two are the same on most hosts."""
MAX_BYTES: Final = 64 << 10
MAX_DROP_INS: Final = 64
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,245}\.(?:service|slice|scope)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One line of a section. An empty ``key``: the line assigns nothing."""

    key: str
    value: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class UnitSection:
    """The section of one unit.

    ``last``: the last file that contains the section. ``assigned``: assignments by key; a later file
    overrides an earlier one, and an empty value removes the assignment. ``odd``: lines that assign nothing.
    """

    unit: str
    last: str
    assigned: Mapping[str, Assignment] = field(default_factory=dict)
    odd: tuple[Assignment, ...] = ()

    @property
    def is_drop_in(self) -> bool:
        """True if the last file with the section is a drop-in."""
        return os.path.dirname(self.last).endswith(".d")


class UnitSections:
    """Reads sections on one host.

    Folders are listed once between two calls of ``look_anew``; files are read each time.
    """

    def __init__(self, fs: KernelFs, section: str) -> None:
        self._fs, self._section = fs, section
        self._names: dict[str, frozenset[str]] | None = None

    def look_anew(self) -> None:
        """List the folders again at the next call."""
        self._names = None

    def units(self) -> list[str]:
        """Every unit with a file or a drop-in folder, running or not."""
        names = {name.removesuffix(".d") for there in self._listed().values() for name in there}
        return sorted(name for name in names if _UNIT.fullmatch(name))

    def of(self, unit: str) -> UnitSection | None:
        """The unit's section; None if no readable file has it."""
        names = [unit, template] if (template := _template(unit)) else [unit]
        found: list[Assignment] = []
        last = ""
        for path in (*self._fragment(names), *self._drop_ins(names)):
            assignments = parse(self._text(path), self._section, path)
            if assignments is not None:
                last = path
                found += assignments
        if not last:
            return None
        assigned = {item.key: item for item in found if item.key}
        return UnitSection(
            unit,
            last,
            {key: item for key, item in assigned.items() if item.value},
            tuple(item for item in found if not item.key),
        )

    def _listed(self) -> Mapping[str, frozenset[str]]:
        if self._names is None:
            self._names = {folder: frozenset(self._list(folder)) for folder in FOLDERS}
        return self._names

    def _list(self, folder: str) -> list[str]:
        try:
            return self._fs.listdir(folder)
        except KernelError:
            return []

    def _fragment(self, names: Sequence[str]) -> list[str]:
        """The unit's own file: the first existing one."""
        listed = self._listed().items()
        return [f"{folder}/{name}" for name in names for folder, there in listed if name in there][:1]

    def _drop_ins(self, names: Sequence[str]) -> list[str]:
        """Drop-ins in the order of their names; for equal names, the first folder's."""
        found: dict[str, str] = {}
        for name in names:
            for folder, there in self._listed().items():
                if f"{name}.d" in there:
                    for file in self._list(f"{folder}/{name}.d"):
                        if file.endswith(".conf"):
                            found.setdefault(file, f"{folder}/{name}.d/{file}")
        return [found[file] for file in sorted(found)[:MAX_DROP_INS]]

    def _text(self, path: str) -> str:
        """The file's text; empty if it is not accepted."""
        if not isinstance(self._fs, ReadsStrangers):
            return ""
        try:
            owner, data = self._fs.read_strangers(path, MAX_BYTES)
        except (KernelError, ParseError):
            return ""
        # An ordinary user's file must not configure others' units, regardless of its folder.
        return data.decode(errors="replace") if owner in (0, os.geteuid()) else ""


def parse(text: str, section: str, path: str) -> list[Assignment] | None:
    """The lines of one section of a unit file, in order; None if it has no such section."""
    found: list[Assignment] | None = None
    inside = False
    for number, line in _lines(text):
        if line.startswith("["):
            inside = line == f"[{section}]"
            found = [] if inside and found is None else found
        elif inside and found is not None:
            key, equals, value = line.partition("=")
            assigned = (key.strip(), value.strip()) if equals and key.strip() else ("", line)
            found.append(Assignment(*assigned, path, number))
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments and blanks; a line that ends in a backslash continues on the next."""
    begun, held = 0, ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if line.startswith(("#", ";")) or not (line or held):
            continue
        begun = begun or number
        if line.endswith("\\"):
            held += f"{line[:-1]} "
            continue
        if whole := f"{held}{line}".strip():
            yield begun, whole
        begun, held = 0, ""
    if held.strip():
        yield begun, held.strip()


def _template(unit: str) -> str:
    """``a@.service`` for ``a@b.service``; empty for a unit that is not an instance."""
    stem, _, suffix = unit.rpartition(".")
    name, at, instance = stem.partition("@")
    return f"{name}@.{suffix}" if at and instance else ""
