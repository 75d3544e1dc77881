"""Which state directories perphds have used on this running kernel, and with which configuration file.

A file a directory below /run/perphd, for as long as a perphd runs with it or has something on record in it. So a
changed ``daemon.state_dir``, or a configuration that cannot be read, leaves nothing behind that nobody finds. The
register ends with the boot, as the values do. Perphds of other hosts (simulated, or below ``host.root``) are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perphd.domain.errors import kernel_error
from perphd.isolation.journal import FILE, this_boot
from perphd.isolation.journal_copy import COPY
from perphd.isolation.journal_format import Original, Record, follow, parse

DIRECTORY = "/run/perphd/journals"
"""Where the register is; tests put theirs elsewhere."""
_SUFFIX: Final = ".json"
_INTENT: Final = b'{"kind":"intent"'
"""Most lines of a journal begin so, and say nothing about originals."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A state directory, and of who used it last the configuration file (empty: none) and the process."""

    state_dir: str
    config: str
    pid: int = 0

    @property
    def is_hidden(self) -> bool:
        """True if whoever uses it lives and the directory cannot be seen from here (PrivateTmp=, ProtectHome=)."""
        return self.pid > 0 and os.path.exists(f"/proc/{self.pid}") and not os.path.isdir(self.state_dir)


class Register:
    """The register in ``directory``, by default that of this host."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = DIRECTORY if directory is None else directory

    def enter(self, state_dir: str, config: str) -> None:
        """Note that a perphd uses this directory, which is there.

        One whose directory is not to be seen stays: PrivateTmp= and ProtectHome= hide what is there for others.

        Raises:
            KernelError: it cannot be noted.
        """
        entry = Entry(os.path.realpath(state_dir), os.path.abspath(config) if config else "", os.getpid())
        path = self._path(entry.state_dir)
        temporary = f"{path}.new"
        try:
            os.makedirs(os.path.dirname(self.directory), mode=0o755, exist_ok=True)
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            text = json.dumps({"state_dir": entry.state_dir, "config": entry.config, "pid": entry.pid})
            Path(temporary).write_text(f"{text}\n")
            os.rename(temporary, path)
        except OSError as exc:
            advice = (
                "nobody else learns which files are changed, and what is kept is found by its directory alone"
            )
            raise kernel_error(exc, path, "write", advice=advice) from exc

    def forget(self, state_dir: str) -> None:
        """Nothing of this directory's is to be given back any more."""
        with suppress(OSError):  # then it is looked at in vain
            os.unlink(self._path(os.path.realpath(state_dir)))

    def entries(self) -> tuple[Entry, ...]:
        """All of them; what cannot be read is left out."""
        try:
            names = sorted(name for name in os.listdir(self.directory) if name.endswith(_SUFFIX))
        except OSError:
            return ()
        found = (_entry(Path(self.directory, name)) for name in names)
        return tuple(entry for entry in found if entry is not None)

    def others(self, state_dir: str) -> tuple[Entry, ...]:
        """All but this directory's."""
        own = os.path.realpath(state_dir)
        return tuple(entry for entry in self.entries() if entry.state_dir != own)

    def of_config(self, config: str) -> tuple[str, ...]:
        """State directories that were last used with this configuration file."""
        path = os.path.abspath(config)
        return tuple(entry.state_dir for entry in self.entries() if entry.config == path)

    def _path(self, state_dir: str) -> str:
        return f"{self.directory}/{hashlib.sha256(state_dir.encode()).hexdigest()[:32]}{_SUFFIX}"


def _entry(path: Path) -> Entry | None:
    try:
        said = json.loads(path.read_text())
        state_dir, config, pid = said["state_dir"], said["config"], said.get("pid", 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(state_dir, str) or not isinstance(config, str) or not isinstance(pid, int):
        return None
    return Entry(state_dir, config, pid) if state_dir.startswith("/") else None


def open_originals(state_dir: str) -> Mapping[str, Original]:
    """What is on record in a state directory and of this boot, by path; without its lock, and without changing it."""
    for name in (FILE, COPY):
        with suppress(OSError):
            lines = Path(state_dir, name).read_bytes().split(b"\n")
            records = [parse(line) for line in lines if not line.startswith(_INTENT)]
            header = next((record for record in records if record and record["kind"] == "header"), None)
            if header is not None:
                return _open_of(records) if header.get("boot") == this_boot() else {}
    return {}


def _open_of(records: Iterable[Record | None]) -> dict[str, Original]:
    found: dict[str, Original] = {}
    for record in records:
        if record is not None:  # else it is damaged, or being written this moment
            follow(found, record)
    return found
