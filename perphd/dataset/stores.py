"""Stores a dataset in a folder, or under a prefix of an object store through pyarrow."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from perphd.dataset.manifest import DatasetError, NotCommitted
from perphd.domain.extras import EXTRA_FOLDER, how_to_get_beside

SCHEMES: Final = ("s3", "gs", "abfs", "abfss")
"""URL schemes of the object stores that pyarrow supports."""
_S3_KEYS: Final = ("region", "scheme", "endpoint_override", "tls_ca_file_path", "role_arn")
"""Keys allowed in the query of an s3:// URL, passed to pyarrow.fs.S3FileSystem."""
_READ_BYTES: Final = 1 << 20
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EISDIR, errno.ENOENT}
)


class Sink(Protocol):
    """A part that is being written."""

    def write(self, data: Any, /) -> Any:
        """Append these bytes."""

    def close(self) -> None:
        """Finish the part. Only then may a manifest name it."""


class ObjectStore(Protocol):
    """The storage place of one dataset. Its content is never listed. Methods raise DatasetError if storage fails."""

    def create(self, name: str) -> Sink:
        """Create an object and return it open for writing."""

    def publish(self, name: str, data: bytes) -> None:
        """Write an object atomically. Objects that were closed before become durable first."""

    def read(self, name: str, most_bytes: int) -> Iterator[bytes]:
        """Yield an object's content in pieces, at most ``most_bytes`` bytes. Raises NotCommitted if it is missing."""

    def delete(self, name: str) -> None:
        """Remove an object if it exists."""


class Folder:
    """A dataset in a local directory.

    Parts are synced to disk, then their directory entries. The manifest then appears by a hard link:
    atomically, and only if no other attempt has committed. On file systems without hard links it is renamed
    into place.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __str__(self) -> str:
        return str(self._path)

    def create(self, name: str) -> Sink:
        """Create a file that is synced when it is closed."""
        with self._errors():
            self._path.mkdir(mode=0o750, parents=True, exist_ok=True)
            return _SyncedFile(self._path / name)

    def publish(self, name: str, data: bytes) -> None:
        """Make the manifest appear. Raises DatasetError if another attempt has committed."""
        with self._errors():
            self._path.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._sync()
            target = self._path / name
            try:
                self._link_unnamed(target, data)
            except FileExistsError as exc:
                raise DatasetError(
                    f"{self}: another attempt has committed a dataset there; choose another name"
                ) from exc
            except OSError as exc:
                if exc.errno not in _NO_LINKS:
                    raise
                self._rename(target, data)
            self._sync()

    def read(self, name: str, most_bytes: int) -> Iterator[bytes]:
        """Yield a file's content in pieces."""
        with self._errors(), open(self._path / name, "rb") as file:
            while most_bytes > 0 and (piece := file.read(min(_READ_BYTES, most_bytes))):
                most_bytes -= len(piece)
                yield piece

    def delete(self, name: str) -> None:
        """Remove a file."""
        with self._errors():
            (self._path / name).unlink(missing_ok=True)

    def _link_unnamed(self, target: Path, data: bytes) -> None:
        """Write a nameless file, then link it, so that a crash before the link leaves nothing behind."""
        descriptor = os.open(self._path, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o640)
        try:
            _write(descriptor, data)
            # Python calls linkat(2), which follows the link in /proc, only if it gets a directory's
            # descriptor.
            os.link(f"/proc/self/fd/{descriptor}", target, src_dir_fd=descriptor, follow_symlinks=True)
        finally:
            os.close(descriptor)

    def _rename(self, target: Path, data: bytes) -> None:
        if target.exists():
            raise DatasetError(f"{self}: another attempt has committed a dataset there; choose another name")
        temporary = self._path / f".{target.name}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            _write(descriptor, data)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)

    def _sync(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as exc:
            raise NotCommitted(f"{self}: there is no {os.path.basename(str(exc.filename))}") from exc
        except OSError as exc:
            raise DatasetError(f"{exc.filename or self}: {exc.strerror or exc}") from exc


class _SyncedFile:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self._path = path

    def write(self, data: Any) -> int:
        try:
            return _write_all(self._descriptor, data)
        except OSError as exc:
            raise DatasetError(f"{self._path}: {exc.strerror or exc}") from exc

    def close(self) -> None:
        if self._descriptor < 0:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as exc:
            raise DatasetError(f"{self._path}: {exc.strerror or exc}") from exc
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_all(descriptor: int, data: Any) -> int:
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        at += os.write(descriptor, view[at:])
    return at


def _write(descriptor: int, data: bytes) -> None:
    _write_all(descriptor, data)
    os.fsync(descriptor)


class Objects:
    """A dataset as objects with a common prefix.

    ``file_system``: a ``pyarrow.fs.FileSystem``. An object appears completely when its upload ends. If two
    attempts commit, the later manifest wins; it names only parts of its own attempt, and the other attempt's
    parts are never deleted.
    """

    def __init__(self, file_system: Any, prefix: str, shown: str = "") -> None:
        self._fs, self._prefix, self._shown = file_system, prefix.rstrip("/"), shown or prefix

    def __str__(self) -> str:
        return self._shown

    def create(self, name: str) -> Sink:
        """Create an object that is uploaded in pieces while it is written."""
        with self._errors(name):
            return _Upload(self, name, self._fs.open_output_stream(f"{self._prefix}/{name}"))

    def publish(self, name: str, data: bytes) -> None:
        """Upload an object."""
        sink = self.create(name)
        sink.write(data)
        sink.close()

    def read(self, name: str, most_bytes: int) -> Iterator[bytes]:
        """Yield an object's content in pieces."""
        with self._errors(name), self._fs.open_input_stream(f"{self._prefix}/{name}") as stream:
            while most_bytes > 0 and (piece := stream.read(min(_READ_BYTES, most_bytes))):
                most_bytes -= len(piece)
                yield piece

    def delete(self, name: str) -> None:
        """Remove an object."""
        with contextlib.suppress(NotCommitted), self._errors(name):
            self._fs.delete_file(f"{self._prefix}/{name}")

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as exc:
            raise NotCommitted(f"{self}: there is no {name}") from exc
        except (OSError, ValueError) as exc:
            raise DatasetError(f"{self}: {name}: {exc}") from exc


class _Upload:
    def __init__(self, store: Objects, name: str, stream: Any) -> None:
        self._store, self._name, self._stream = store, name, stream

    def write(self, data: Any) -> int:
        with self._store._errors(self._name):
            self._stream.write(data)
        return len(memoryview(data).cast("B"))

    def close(self) -> None:
        with self._store._errors(self._name):
            self._stream.close()


def open_store(where: str) -> ObjectStore:
    """Open a folder, or a URL of an object store such as ``s3://bucket/prefix/name``.

    The query of an ``s3://`` URL may contain ``_S3_KEYS``, that of other URLs any key that pyarrow supports.
    Credentials come from the environment (AWS_SHARED_CREDENTIALS_FILE, AWS_ACCESS_KEY_ID ...), never from the
    URL.

    Raises:
        DatasetError: the URL is invalid or contains credentials, or pyarrow is not installed.
    """
    scheme, found, rest = where.partition("://")
    if not found or scheme == "file":
        return Folder(rest if found else where)
    if scheme not in SCHEMES:
        allowed = ", ".join(f"{name}://" for name in SCHEMES)
        raise DatasetError(f"{where}: this kind of store is not supported (allowed: a folder, {allowed})")
    if scheme == "s3" and "@" in rest.partition("/")[0]:
        raise DatasetError(
            "a URL with credentials is refused, because process lists and logs would show them; "
            "use AWS_SHARED_CREDENTIALS_FILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    fs = pyarrow("fs", "an object store")
    shown = where.partition("?")[0]
    try:
        file_system, prefix = _s3(fs, where) if scheme == "s3" else fs.FileSystem.from_uri(where)
    except (OSError, ValueError, TypeError) as exc:
        raise DatasetError(f"{shown}: {exc}") from exc
    return Objects(file_system, prefix, shown)


def inside(where: str, *names: str) -> str:
    """The place of a named dataset within a folder or URL. A URL's query stays at the end."""
    path, mark, query = where.partition("?") if "://" in where else (where, "", "")
    return "/".join((path.rstrip("/"), *names)) + mark + query


def _s3(fs: Any, where: str) -> tuple[Any, str]:
    """The S3 file system and the path in it, without background uploads, to bound memory use."""
    address = urlsplit(where)
    given = dict(parse_qsl(address.query, keep_blank_values=True))
    if unknown := sorted(set(given) - set(_S3_KEYS)):
        raise ValueError(f"unknown key {unknown[0]!r} in the URL (allowed: {', '.join(_S3_KEYS)})")
    file_system = fs.S3FileSystem(**given, background_writes=False, allow_delayed_open=True)
    return file_system, f"{address.netloc}{address.path}"


def pyarrow(module: str, what: str, instead: str = "") -> Any:
    """Import a module of pyarrow, from the installation or from ``EXTRA_FOLDER``.

    Args:
        module: ``fs``, ``parquet``, or empty for pyarrow itself.
        what: the feature that needs it; begins the error's sentence.
        instead: the alternative without it; continues that sentence.

    Raises:
        DatasetError: pyarrow is not installed or incompatible with other libraries; the text states how to
            install it.
    """
    if EXTRA_FOLDER not in sys.path:
        sys.path.append(EXTRA_FOLDER)
    try:
        return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError as exc:
        absent = isinstance(exc, ModuleNotFoundError)
        trouble = "is not installed" if absent else f"cannot be used here ({exc})"
        raise DatasetError(
            f"{what} needs the Python package pyarrow, which {trouble}{instead}. "
            f"To get it: {how_to_get_beside('pyarrow', 'export', __file__)}"
        ) from exc
