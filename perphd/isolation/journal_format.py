"""The lines of the journal: what they say, and how one that is damaged or cut short is told.

One JSON object a line, each with a checksum: ``header`` (version, boot), ``original`` (what a file held before the
first write), ``intent`` (a value about to be written), ``closed`` (given back) and ``kept`` (ended in good order, with
all this in force). Knows no file: what the lines mean together is the journal's to say.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from perphd.domain.quick import changer

VERSION: Final = 1
# One for all lines: json.dumps would make one a call.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii

Record: TypeAlias = dict[str, Any]
"""What a line says, without its checksum; it has a ``kind``."""


@dataclass(frozen=True, slots=True)
class Original:
    """What a file held before the first write. ``identity``: (device, inode) of the cgroup directory it is in.

    ``sequence`` is given by the journal: the order of first writes.
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
"""The same original with this sequence."""


def header_line(boot: str) -> str:
    """The first line of a journal of this boot."""
    return _line({"kind": "header", "version": VERSION, "boot": boot})


def original_line(entry: Original) -> str:
    """The line of an original; bytes that are no text are kept as they are."""
    body = (
        f'{{"kind":"original","seq":{entry.sequence},"workload":{_quoted(entry.workload)},'
        f'"knob":{_quoted(entry.knob)},"path":{_quoted(entry.path)},"raw":{_quoted(entry.raw.decode("latin-1"))},'
        f'"dev":{entry.identity[0]},"ino":{entry.identity[1]}'
    )
    return f'{body},"crc":{zlib.crc32(body.encode() + b"}")}}}\n'


def intent_line(path: str, value: str) -> str:
    """The line of a value that is about to be written."""
    # As _line would, in a quarter of the time: there is one of these for every write.
    body = f'{{"kind":"intent","path":{_quoted(path)},"value":{_quoted(value)}'
    return f'{body},"crc":{zlib.crc32(body.encode() + b"}")}}}\n'


def closed_line(path: str) -> str:
    """The line that says that a file is given back."""
    return _line({"kind": "closed", "path": path})


def kept_line() -> str:
    """The line that says that all before it stays in force on purpose."""
    return _line({"kind": "kept"})


def _line(record: Record) -> str:
    body = _encode(record)
    return f'{body[:-1]},"crc":{zlib.crc32(body.encode())}}}\n'


def parse(line: bytes) -> Record | None:
    """The record of a line whose checksum holds, else None."""
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
    """What is not given back after this line, in the order of first writes, by path."""
    if record["kind"] == "original":
        entry = as_original(record)
        originals.pop(entry.path, None)
        originals[entry.path] = entry
    elif record["kind"] == "closed":
        originals.pop(str(record.get("path", "")), None)


def as_original(record: Record) -> Original:
    """The original of a record of that kind."""
    return Original(
        path=str(record["path"]),
        raw=str(record["raw"]).encode("latin-1"),
        identity=(int(record["dev"]), int(record["ino"])),
        knob=str(record["knob"]),
        workload=str(record["workload"]),
        sequence=int(record["seq"]),
    )
