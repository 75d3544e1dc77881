"""The journal's second file: the same lines, so that damage to the first loses no original.

A disk that fails, an editor, a clean-up job: what remains of one file is made good from the other. The copy is never
waited for: nothing fails because of it, and it is behind the journal by one append at most. It is shortened before the
journal and lengthened after it, so that whichever of the two says more is right.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from perphd.isolation.journal_format import parse

COPY: Final = "originals.copy.jsonl"


class Copy:
    """The copy in a state directory; written by the one who holds the journal's lock."""

    def __init__(self, state_dir: str) -> None:
        self.path = f"{state_dir}/{COPY}"
        self._fd = -1

    def read(self) -> bytes:
        """What is in it; nothing if it cannot be read."""
        with suppress(OSError):
            return Path(self.path).read_bytes()
        return b""

    def append(self, data: bytes) -> None:
        """The journal has grown by this."""
        if self._fd < 0:
            return
        try:
            if os.write(self._fd, data) != len(data):
                self._give_up()
        except OSError:
            self._give_up()

    def replace(self, data: bytes) -> None:
        """The journal is about to say this and nothing else."""
        self.close()
        try:
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError:
            self._give_up()  # what it says would pass for more than the journal, and bring closed originals back
            return
        self.append(data)

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _give_up(self) -> None:
        """Half a copy is worse than none: until the journal is next written anew there is none."""
        self.close()
        with suppress(OSError):
            os.unlink(self.path)


def says_more(copy: bytes, journal: bytes, header: bytes) -> bool:
    """True if the copy is whole and of this boot, and the journal is not whole or ends earlier.

    ``header``: the line that a journal of this boot begins with.
    """
    records = [parse(line) for line in copy.split(b"\n")[:-1]]
    if len(records) < 2 or None in records or not copy.startswith(header):
        return False
    if copy.startswith(journal):
        return len(copy) > len(journal)
    *lines, torn = journal.split(b"\n")
    first = parse(lines[0]) if lines else None
    if first is not None and first["kind"] == "header" and first != records[0]:
        return False  # of another boot or version: that is not damage
    whole = [record for line in lines if (record := parse(line)) is not None]
    return len(whole) < len(lines) or not lines or bool(torn and len(whole) < len(records))
