"""Access to kernel files: the real ones below a root, or a simulated tree.

All code that reads or writes /proc, /sys or a cgroup takes a ``KernelFs``. Paths are absolute as on the real
host. Errors are the classes of ``perphd.domain.errors``.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice
from pathlib import Path
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from perphd.domain.errors import Gone, KernelError, ParseError, kernel_error

if TYPE_CHECKING:
    import rdt

Identity: TypeAlias = tuple[int, int]
"""(device, inode) of a directory, which differs for another cgroup of the same path."""
_READ_BYTES = 1 << 16
_FIRST_BYTES = 1 << 12
"""Size of the first read. Most of these files are small, and the buffer is allocated at every read."""
_WHOLE_BYTES = 2048
"""Length below which a first read is known to be complete.

A kernel file of many records is returned in pieces of up to a page, each ending before the record that no
longer fits. A piece shorter than this had room for another record of any file that is kept open, so the file has ended.
"""


class KernelFile(Protocol):
    """A kernel file kept open; each read gives its present content."""

    def read(self) -> bytes:
        """The whole content now. Raises Gone if the object behind the file has vanished."""

    def close(self) -> None:
        """Close the descriptor; closing twice is allowed."""


class HeldFile(KernelFile, Protocol):
    """A kernel file of one specific directory, kept open for reading and writing."""

    def write(self, data: bytes) -> None:
        """One write(2), as ``KernelFs.write``. Raises Gone if the object behind the file has vanished."""


class KernelFs(Protocol):
    """The file operations that perphd needs. All raise KernelError classes, never OSError."""

    def open(self, path: str) -> KernelFile:
        """Open for repeated reading."""

    def read(self, path: str) -> bytes:
        """Read a whole file."""

    def write(self, path: str, data: bytes) -> None:
        """Write an existing file by one write(2), which the kernel parses as one command."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory, sorted, without symbolic links."""

    def exists(self, path: str) -> bool:
        """True if the file or directory exists."""

    def identity(self, path: str) -> Identity:
        """(device, inode): changes when a cgroup is removed and recreated under the same name."""


@runtime_checkable
class ReadsStrangers(Protocol):
    """File systems that can also read ordinary files, which applications may have written."""

    def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        """(uid of the owner, first ``most_bytes`` bytes) of a regular file; never blocks.

        Raises:
            KernelError: it does not exist, or cannot be read.
            ParseError: it is not a regular file, but a symbolic link, a FIFO, a device ...
        """


@runtime_checkable
class ListsStrangers(Protocol):
    """File systems that can also list applications' own directories, however large."""

    def list_strangers(self, path: str, most: int) -> list[str]:
        """Names in a directory, in any order, at most ``most``.

        Raises:
            KernelError: it does not exist, or cannot be listed.
        """


class _RealFile:
    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path = fd, path

    def read(self) -> bytes:
        try:
            data = os.pread(self._fd, _FIRST_BYTES, 0)
            return data if len(data) < _WHOLE_BYTES else _rest(self._fd, data)
        except OSError as exc:
            raise kernel_error(exc, self._path, "read") from exc

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class _RealHeldFile(_RealFile):
    __slots__ = ()

    def write(self, data: bytes) -> None:
        try:
            os.pwrite(self._fd, data, 0)
        except OSError as exc:
            shown = data.decode(errors="replace").rstrip("\n")
            raise kernel_error(exc, self._path, "write", shown) from exc


def _whole(fd: int) -> bytes:
    data = os.pread(fd, _FIRST_BYTES, 0)
    return data if len(data) < _WHOLE_BYTES else _rest(fd, data)


def _rest(fd: int, data: bytes) -> bytes:
    """Read the rest of a file after ``data``; returns the whole content."""
    parts, offset = [data], len(data)
    while chunk := os.pread(fd, _READ_BYTES, offset):
        parts.append(chunk)
        offset += len(chunk)
    return b"".join(parts)


class RealFs:
    """The running kernel's files, or a copy of them below ``root`` (fixtures in tests)."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = str(root).rstrip("/")

    def _at(self, path: str) -> str:
        return self._root + path

    @property
    def raw(self) -> rdt.Fs:
        """The same files as ``rdt`` needs them: with plain OSError, and with mkdir and rmdir."""
        from rdt.fs import RealFs as Raw

        return Raw(self._root or "/")

    def open(self, path: str) -> KernelFile:
        """Open for repeated reading."""
        try:
            return _RealFile(os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC), path)
        except OSError as exc:
            raise kernel_error(exc, path, "open") from exc

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        try:
            fd = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise kernel_error(exc, path, "open") from exc
        try:
            return _whole(fd)
        except OSError as exc:
            raise kernel_error(exc, path, "read") from exc
        finally:
            os.close(fd)

    def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        """See ``ReadsStrangers``. O_NONBLOCK, because open(2) of a FIFO would wait for a writer."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        try:
            fd = os.open(self._at(path), flags)
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise ParseError("a plain file", path, "a file, not a symbolic link to one") from exc
            raise kernel_error(exc, path, "open") from exc
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ParseError("a plain file", path, "a regular file")
            return status.st_uid, os.read(fd, most_bytes)
        except OSError as exc:
            raise kernel_error(exc, path, "read") from exc
        finally:
            os.close(fd)

    def write(self, path: str, data: bytes) -> None:
        """Write an existing file by one write(2)."""
        shown = data.decode(errors="replace").rstrip("\n")
        try:
            fd = os.open(self._at(path), os.O_WRONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise kernel_error(exc, path, "open for writing", shown) from exc
        try:
            os.write(fd, data)
        except OSError as exc:
            raise kernel_error(exc, path, "write", shown) from exc
        finally:
            os.close(fd)

    def write_within(self, path: str, data: bytes, identity: Identity) -> None:
        """Like ``write``, but in exactly this directory: the file is opened through it, not by its path.

        Raises:
            KernelError: as ``write``; Gone if the directory is gone, or was replaced.
        """
        shown = data.decode(errors="replace").rstrip("\n")
        fds: list[int] = []
        try:
            fds.append(os.open(self._at(dirname(path)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            status = os.fstat(fds[0])
            if (status.st_dev, status.st_ino) != identity:
                raise not_the_same(path, shown)
            fds.append(os.open(basename(path), os.O_WRONLY | os.O_CLOEXEC, dir_fd=fds[0]))
            os.write(fds[1], data)
        except OSError as exc:
            raise kernel_error(exc, path, "write" if len(fds) == 2 else "open for writing", shown) from exc
        finally:
            for fd in fds:
                os.close(fd)

    def hold(self, path: str, identity: Identity) -> HeldFile:
        """Open for reading and writing in exactly this directory, as ``write_within`` does.

        Raises:
            KernelError: it cannot be opened; Gone if the directory is gone, or was replaced.
        """
        directory, _, name = path.rpartition("/")
        folder = -1
        try:
            folder = os.open(self._root + directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            status = os.fstat(folder)
            if (status.st_dev, status.st_ino) != identity:
                raise not_the_same(path, "")
            return _RealHeldFile(os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=folder), path)
        except OSError as exc:
            raise kernel_error(exc, path, "open for writing") from exc
        finally:
            if folder >= 0:
                os.close(folder)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        try:
            return sorted(os.listdir(self._at(path)))
        except OSError as exc:
            raise kernel_error(exc, path, "list") from exc

    def list_strangers(self, path: str, most: int) -> list[str]:
        """See ``ListsStrangers``."""
        try:
            with os.scandir(self._at(path)) as entries:
                return [entry.name for entry in islice(entries, most)]
        except OSError as exc:
            raise kernel_error(exc, path, "list") from exc

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory, sorted."""
        try:
            with os.scandir(self._at(path)) as entries:  # gives kinds without a call per name
                return sorted([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])
        except OSError as exc:
            raise kernel_error(exc, path, "list") from exc

    def exists(self, path: str) -> bool:
        """True if the file or directory exists."""
        return os.path.exists(self._at(path))

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode)."""
        try:
            status = os.stat(self._at(path))
        except OSError as exc:
            raise kernel_error(exc, path, "stat") from exc
        return status.st_dev, status.st_ino


def not_the_same(path: str, value: str) -> Gone:
    """The error for a write to a directory that has been replaced."""
    return Gone(path, "write", errno.ESTALE, value, advice="another cgroup now has this path")


def text_or_empty(fs: KernelFs, path: str) -> str:
    """The file's text as ``read_text`` gives it; empty if it cannot be read."""
    try:
        return read_text(fs, path)
    except KernelError:
        return ""


def write_within(fs: KernelFs, path: str, data: bytes, identity: Identity | None) -> None:
    """One write into exactly this directory. ``identity`` None: any directory at this path.

    If ``fs`` cannot open a file through its directory (simulated trees), the identity is checked before the
    write.

    Raises:
        KernelError: as ``RealFs.write_within``.
    """
    if identity is None:
        fs.write(path, data)
    elif (within := getattr(fs, "write_within", None)) is not None:  # isinstance of a Protocol takes 15 us
        within(path, data, identity)
    elif fs.identity(dirname(path)) != identity:
        raise not_the_same(path, data.decode(errors="replace").rstrip("\n"))
    else:
        fs.write(path, data)


def hold(fs: KernelFs, path: str, identity: Identity) -> HeldFile | None:
    """The file of exactly this directory, open for reading and writing, where ``fs`` writes it through a descriptor.

    None: ``fs`` does not (simulated trees, units of systemd, traffic classes); call ``write_within`` instead.

    Raises:
        KernelError: it cannot be opened; Gone if the directory is gone, or was replaced.
    """
    holds = getattr(fs, "hold", None)  # isinstance of a Protocol takes 15 us
    found: HeldFile | None = None if holds is None else holds(path, identity)
    return found


def read_text(fs: KernelFs, path: str) -> str:
    """The file's text without the trailing newline; invalid UTF-8 is replaced."""
    return as_text(fs.read(path))


def as_text(data: bytes) -> str:
    """A file's content without the trailing newline; invalid UTF-8 is replaced."""
    return data.decode(errors="replace").rstrip("\n")
