"""Encoding of journal lines, and detection of damaged or truncated ones.

Each line is a JSON object with a checksum. Kinds: ``header`` (version, boot), ``original`` (a file's content before the
first write), ``intent`` (a value about to be written), ``closed`` (restored) and ``kept`` (clean exit with everything
left in force). This module reads and writes no journal file; ``journal`` interprets sequences of lines.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from perphd.domain.quick import changer

VERSION: Final = 1
# Shared by all lines, because json.dumps creates an encoder per call.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii

Record: TypeAlias = dict[str, Any]
"""Content of a line without its checksum; always has a ``kind``."""


@dataclass(frozen=True, slots=True)
class Original:
    """Content of a file before the first write.

    ``identity``: (device, inode) of the file's cgroup directory. ``sequence``: order of first writes, assigned by the
    journal.
    """

    path: str
    raw: bytes
    identity: tuple[int, int]
    knob: str
    workload: str
    sequence: int = 0

    @property
    def text(self) -> str:
        """The value without its trailing newline."""
        return self.raw.decode(errors="replace").rstrip("\n")


numbered = changer(Original, "sequence")
"""Copies an original with another sequence number."""


def header_line(boot: str) -> str:
    """The first line of a journal of this boot."""
    return _line({"kind": "header", "version": VERSION, "boot": boot})


def original_line(entry: Original) -> str:
    """The line that records an original; bytes that are not valid text are preserved."""
    body = (
        f'{{"kind":"original","seq":{entry.sequence},"workload":{_quoted(entry.workload)},'
        f'"knob":{_quoted(entry.knob)},"path":{_quoted(entry.path)},"raw":{_quoted(entry.raw.decode("latin-1"))},'
        f'"dev":{entry.identity[0]},"ino":{entry.identity[1]}'
    )
    return f'{body},"crc":{zlib.crc32(body.encode() + b"}")}}}\n'


def intent_line(path: str, value: str) -> str:
    """The line that records a value about to be written."""
    # Equivalent to _line and four times faster; every write has such a line.
    body = f'{{"kind":"intent","path":{_quoted(path)},"value":{_quoted(value)}'
    return f'{body},"crc":{zlib.crc32(body.encode() + b"}")}}}\n'


def closed_line(path: str) -> str:
    """The line that records a file as restored."""
    return _line({"kind": "closed", "path": path})


def kept_line() -> str:
    """The line that marks everything before it as kept in force on purpose."""
    return _line({"kind": "kept"})


def _line(record: Record) -> str:
    body = _encode(record)
    return f'{body[:-1]},"crc":{zlib.crc32(body.encode())}}}\n'


def parse(line: bytes) -> Record | None:
    """The record of a line with a valid checksum, else None."""
    try:
        record = json.loads(line)
        crc = record.pop("crc")
        body = _encode(record)
        if zlib.crc32(body.encode()) != crc or not isinstance(record["kind"], str):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dict(record)


def follow(originals: dict[str, Original], record: Record) -> None:
    """Apply one record to ``originals``, the originals not yet restored, by path."""
    if record["kind"] == "original":
        entry = as_original(record)
        originals.pop(entry.path, None)
        originals[entry.path] = entry
    elif record["kind"] == "closed":
        originals.pop(str(record.get("path", "")), None)


def as_original(record: Record) -> Original:
    """Convert a record of kind ``original``."""
    return Original(
        path=str(record["path"]),
        raw=str(record["raw"]).encode("latin-1"),
        identity=(int(record["dev"]), int(record["ino"])),
        knob=str(record["knob"]),
        workload=str(record["workload"]),
        sequence=int(record["seq"]),
    )


COPY: Final = "originals.copy.jsonl"


class JournalCopy:
    """A second file with the same lines as the journal, so that damage to one loses no original.

    The journal is repaired from the copy after disk errors or truncation. No operation waits for the copy or fails
    because of it, and it lags by at most one append. It is shortened before the journal and lengthened after it, so
    the longer of the two is right.
    """

    def __init__(self, state_dir: str) -> None:
        self.path = f"{state_dir}/{COPY}"
        self._fd = -1

    def read(self) -> bytes:
        """Content of the copy; empty if it cannot be read."""
        with suppress(OSError):
            return Path(self.path).read_bytes()
        return b""

    def append(self, data: bytes) -> None:
        """Append the data just appended to the journal."""
        if self._fd < 0:
            return
        try:
            if os.write(self._fd, data) != len(data):
                self._give_up()
        except OSError:
            self._give_up()

    def replace(self, data: bytes) -> None:
        """Replace the content; the journal does the same afterwards."""
        self.close()
        try:
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError:
            self._give_up()  # a stale copy would be longer than the journal and revive closed originals
            return
        self.append(data)

    def shorten(self, header: bytes) -> None:
        """Keep only the first line, which must be this one; the journal does the same afterwards.

        It does not use ``replace``: the file system flushes an emptied file when it is closed, which takes
        milliseconds.
        """
        if self._fd < 0:
            self.replace(header)
            return
        try:
            os.ftruncate(self._fd, len(header))
        except OSError:
            self._give_up()

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _give_up(self) -> None:
        """Remove the copy until the next rewrite of the journal, because a partial copy would mislead."""
        self.close()
        with suppress(OSError):
            os.unlink(self.path)


def says_more(copy: bytes, journal: bytes, header: bytes) -> bool:
    """True if the copy is intact and of this boot, and the journal is damaged or shorter.

    ``header``: the first line of a journal of this boot.
    """
    records = [parse(line) for line in copy.split(b"\n")[:-1]]
    if len(records) < 2 or None in records or not copy.startswith(header):
        return False
    if copy.startswith(journal):
        return len(copy) > len(journal)
    *lines, torn = journal.split(b"\n")
    first = parse(lines[0]) if lines else None
    if first is not None and first["kind"] == "header" and first != records[0]:
        return False  # the file belongs to another boot or version, which is not damage
    whole = [record for line in lines if (record := parse(line)) is not None]
    return len(whole) < len(lines) or not lines or bool(torn and len(whole) < len(records))
