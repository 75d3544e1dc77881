"""Lines of published traces: CSV or JSON lines, plain, gzip or xz, in folders, tar archives or datasets.

Everything is streamed: memory is bounded by the longest line that is accepted. Archives are not unpacked.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from perphd.dataset.attempt import read_manifest, read_part
from perphd.dataset.manifest import SUCCESS
from perphd.dataset.stores import Folder, ObjectStore
from perphd.domain.errors import PerphError

MOST_LINE_BYTES: Final = 1 << 20
MOST_SKIPPED_BYTES: Final = 64 << 20
"""Maximum length of a line in bytes; a longer line is an error, regardless of the number of accepted bad rows."""
MOST_HEADER_BYTES: Final = 1 << 20
"""Maximum size in bytes of a member's extended header in an archive, which is held in memory."""
_EXTENDED: Final = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
)  # fmt: skip
_TAR: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz")


class TraceError(PerphError):
    """A trace cannot be read; the text states the file, the place and the reason."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its terminator. ``text``: None if the line is too long to hold; ``whole``: the line had a
    terminator.
    """

    number: int
    text: bytes | None
    whole: bool


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One table file, to be read once. ``facts``: of the dataset that it is part of."""

    name: str
    lines: Iterator[Line]
    facts: Mapping[str, str]


class _BoundedInfo(tarfile.TarInfo):
    """A member whose header is bounded, of an archive with its end marker. Without the marker, the archive may be
    truncated between two members.
    """

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: Any) -> Any:
        if not buf:
            raise tarfile.ReadError("it has no end marker")
        return super().frombuf(buf, encoding, errors)

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in _EXTENDED and self.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(
                f"the header of a member has {self.size} bytes (allowed: {MOST_HEADER_BYTES})"
            )
        return super()._proc_member(archive)  # type: ignore[misc]


def trace_files(paths: Sequence[Path]) -> Iterator[TraceFile]:
    """All files of these paths, in order of their names; each must be read before the next one is requested.

    Raises:
        TraceError: a file is damaged, ends early, or has suspicious member names.
    """
    for path in paths:
        if path.is_dir():
            if (path / SUCCESS).exists():
                yield from _of_dataset(Folder(path))
                continue
            for each in sorted(p for p in path.rglob("*") if p.is_file()):
                yield from _of_file(each, str(each.relative_to(path.parent)))
        elif path.exists():
            yield from _of_file(path, path.name)
        else:
            raise TraceError(f"{path}: there is no such file or folder")


def _of_dataset(store: ObjectStore) -> Iterator[TraceFile]:
    manifest = read_manifest(store)
    for part in manifest.parts:
        stream = io.BufferedReader(_Pieces(read_part(store, part)), MOST_LINE_BYTES)
        yield TraceFile(part.source, _lines(stream, f"{store}/{part.name}"), manifest.facts)


def _of_file(path: Path, name: str) -> Iterator[TraceFile]:
    with _errors(str(path)), contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(open(path, "rb"))
        if path.suffix in (".gz", ".tgz"):
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
        elif path.suffix == ".xz":
            stream = stack.enter_context(lzma.LZMAFile(stream))
        if not path.name.endswith(_TAR):
            yield TraceFile(name, _lines(stream, str(path)), {})
            return
        archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedInfo))
        for info in archive:
            archive.members = []  # type: ignore[attr-defined]  # it would keep them all
            if info.isdir():
                continue
            inner = PurePosixPath(info.name)
            if not info.isfile() or inner.is_absolute() or ".." in inner.parts or "\0" in info.name:
                raise TraceError(
                    f"{path}: has a member {info.name[:200]!r} that is not a regular file below the archive's folder"
                )
            member = archive.extractfile(info)
            assert member is not None
            yield TraceFile(f"{name}/{inner}", _lines(member, f"{path}: {inner}"), {})


def _lines(stream: IO[bytes] | io.BufferedReader, where: str) -> Iterator[Line]:
    number = 0
    with _errors(where):
        while text := stream.readline(MOST_LINE_BYTES + 1):
            number += 1
            if text.endswith(b"\n") or len(text) <= MOST_LINE_BYTES:
                yield Line(number, text.rstrip(b"\r\n"), text.endswith(b"\n"))
                continue
            skipped = len(text)
            while text and not text.endswith(b"\n"):
                text = stream.readline(MOST_LINE_BYTES)
                skipped += len(text)
                if skipped > MOST_SKIPPED_BYTES:
                    raise TraceError(f"{where}: line {number} does not end within {MOST_SKIPPED_BYTES} bytes")
            yield Line(number, None, True)


@contextlib.contextmanager
def _errors(where: str) -> Iterator[None]:
    try:
        yield
    except EOFError as exc:
        raise TraceError(f"{where}: is truncated: {exc}") from exc
    except tarfile.ReadError as exc:
        raise TraceError(f"{where}: is a truncated or damaged archive: {exc}") from exc
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError) as exc:
        raise TraceError(f"{where}: is damaged: {exc}") from exc
    except OSError as exc:
        raise TraceError(f"{where}: cannot be read: {exc.strerror or exc}") from exc


class _Pieces(io.RawIOBase):
    """The pieces of a part as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
