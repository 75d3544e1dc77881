"""Writes a dataset as one attempt, and reads committed datasets."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from perphd import __version__
from perphd.dataset.manifest import (
    MOST_MANIFEST_BYTES,
    SUCCESS,
    Damaged,
    DatasetError,
    Manifest,
    NotCommitted,
    Part,
    decode,
    encode,
    new_attempt,
    part_name,
)
from perphd.dataset.stores import ObjectStore, Sink

PRODUCER: Final = f"perphd {__version__}"
PART_BYTES: Final = 64 << 20
"""Size at which a table continues in another part: small enough to retry, large enough for few requests."""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_COPY_BYTES: Final = 1 << 20


class PartFile(io.RawIOBase):
    """An append-only binary file for a part; counts and digests the bytes written."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._digest, self.bytes_written = sink, hashlib.sha256(), 0

    def writable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self.bytes_written

    def write(self, data: Any, /) -> int:
        """Write all of ``data``."""
        self._sink.write(data)
        self._digest.update(data)
        size = len(memoryview(data).cast("B"))
        self.bytes_written += size
        return size

    @property
    def sha256(self) -> str:
        """Hexadecimal digest so far."""
        return self._digest.hexdigest()


class Attempt:
    """One attempt to write a dataset. Readers see it only after ``commit``, and never after ``abort``."""

    def __init__(self, store: ObjectStore, attempt: str = "") -> None:
        self._store = store
        self.attempt = attempt or new_attempt(Path(_BOOT_ID).read_text(encoding="ascii"))
        self._parts: list[Part] = []
        self._begun: list[str] = []

    def add(self, source: str, suffix: str, write: Callable[[PartFile], int | None]) -> Part:
        """Write one part.

        Args:
            source: the table or file whose content the part holds.
            suffix: suffix of the part's name, such as ``.csv``.
            write: function that writes into the file and returns the number of rows, or None.

        Raises:
            DatasetError: the store cannot write the part.
        """
        name = part_name(len(self._begun), self.attempt, suffix)
        self._begun.append(name)
        sink = self._store.create(name)
        file = PartFile(sink)
        try:
            rows = write(file)
        except BaseException:
            # Some stores finish an upload when its stream is garbage-collected: close it now, while the part
            # can be deleted.
            with contextlib.suppress(DatasetError):
                sink.close()
            raise
        sink.close()
        self._parts.append(Part(name, source, file.bytes_written, file.sha256, rows))
        return self._parts[-1]

    def add_file(self, path: Path, source: str) -> Part:
        """Write a local file as one part with the same suffix."""

        def copy(part: PartFile) -> None:
            with open(path, "rb") as file:
                while piece := file.read(_COPY_BYTES):
                    part.write(piece)

        try:
            return self.add(source, path.suffix, copy)
        except OSError as exc:
            raise DatasetError(f"{path}: cannot be read: {exc.strerror or exc}") from exc

    def commit(self, facts: Mapping[str, str] | None = None) -> Manifest:
        """Make all parts readable at once.

        Raises:
            DatasetError: the store cannot write the manifest or, for a folder, another attempt committed first.
        """
        manifest = Manifest(self.attempt, PRODUCER, tuple(self._parts), dict(facts or {}))
        self._store.publish(SUCCESS, encode(manifest))
        return manifest

    def abort(self) -> None:
        """Delete the parts as far as the store allows. Remaining parts are never read."""
        for name in self._begun:
            with contextlib.suppress(DatasetError):
                self._store.delete(name)


@contextlib.contextmanager
def attempt(store: ObjectStore) -> Iterator[Attempt]:
    """An attempt whose parts are deleted if the block raises before the manifest is written."""
    made = Attempt(store)
    try:
        yield made
    except BaseException:
        # The store may have written the manifest although it reported an error: keep parts that it names.
        with contextlib.suppress(DatasetError):
            if not _names(store, made.attempt):
                made.abort()
        raise


def _names(store: ObjectStore, name: str) -> bool:
    """True if the dataset's manifest names this attempt; False if it names another, or there is none."""
    try:
        return read_manifest(store).attempt == name
    except NotCommitted:
        return False


def read_manifest(store: ObjectStore) -> Manifest:
    """Read the manifest of a committed dataset.

    Raises:
        NotCommitted: there is no manifest.
        Damaged: the file is not a valid manifest.
    """
    data = b"".join(store.read(SUCCESS, MOST_MANIFEST_BYTES + 1))
    if len(data) > MOST_MANIFEST_BYTES:
        raise Damaged(f"{store}: {SUCCESS} is larger than {MOST_MANIFEST_BYTES} bytes")
    return decode(data, f"{store}: {SUCCESS}")


def read_part(store: ObjectStore, part: Part) -> Iterator[bytes]:
    """Yield a part's content in pieces; the last piece follows only after size and digest were verified.

    Raises:
        Damaged: the part is missing, or differs from the committed one.
    """
    digest, size = hashlib.sha256(), 0
    held = b""
    try:
        for piece in store.read(part.name, part.bytes + 1):
            digest.update(piece)
            size += len(piece)
            if held:
                yield held
            held = piece
    except NotCommitted as exc:
        raise Damaged(f"{store}: {part.name} is listed in the manifest but missing from the store") from exc
    if size != part.bytes or digest.hexdigest() != part.sha256:
        raise Damaged(f"{store}: {part.name} differs from the manifest ({size} of {part.bytes} bytes)")
    if held:
        yield held
