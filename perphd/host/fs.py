"""The one way to kernel files: real ones below a root, or a simulated tree with the same answers.

Everything that reads or writes /proc, /sys or a cgroup takes a ``KernelFs``; paths are absolute as on the
real host. Errors are the classes of ``perphd.domain.errors``.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice
from pathlib import Path
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from perphd.domain.errors import Gone, ParseError, kernel_error

if TYPE_CHECKING:
    import rdt

Identity: TypeAlias = tuple[int, int]
"""(device, inode) of a directory: another cgroup of the same path has another one."""
_READ_BYTES = 1 << 16
_FIRST_BYTES = 1 << 12
"""What is asked for at first: most of these files are small, and room for the largest would be made for each."""
_WHOLE_BYTES = 2048
"""A kernel file of many records comes in pieces of up to a page, each ending where the next record would not fit. A
first piece shorter than this is all there is: it had room for any record of the files that are kept open."""


class KernelFile(Protocol):
    """A kernel file kept open: reading again gives the present content."""

    def read(self) -> bytes:
        """The whole content now. Raises Gone when the object behind the file vanished."""

    def close(self) -> None:
        """Give the descriptor back; closing twice is fine."""


class KernelFs(Protocol):
    """File operations as perphd needs them. All raise KernelError classes, never OSError."""

    def open(self, path: str) -> KernelFile:
        """Open for repeated reading."""

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file (never creates); the kernel parses it as one command."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory, sorted; symbolic links are none."""

    def exists(self, path: str) -> bool:
        """True if something is there."""

    def identity(self, path: str) -> Identity:
        """(device, inode): changes when a cgroup is removed and made again under the same name."""


@runtime_checkable
class WritesWithin(Protocol):
    """File systems that write into one directory and no other, whatever comes to bear its name meanwhile."""

    def write_within(self, path: str, data: bytes, identity: Identity) -> None:
        """As ``KernelFs.write``, if the file's directory is this one.

        Raises:
            KernelError: as ``write``; Gone: the directory is not there any more, or another one is.
        """


@runtime_checkable
class ReadsStrangers(Protocol):
    """File systems that also read files which are not the kernel's, and which applications may have put there."""

    def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        """(uid of the owner, the first ``most_bytes``) of a plain file; never waits for anybody.

        Raises:
            KernelError: it is not there, or cannot be read.
            ParseError: it is no plain file, but a symbolic link, a FIFO, a device ...
        """


@runtime_checkable
class ListsStrangers(Protocol):
    """File systems that also list directories which are applications' own, however large those are."""

    def list_strangers(self, path: str, most: int) -> list[str]:
        """Names in a directory, ``most`` of them if there are more, in any order.

        Raises:
            KernelError: it is not there, or cannot be listed.
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


def _whole(fd: int) -> bytes:
    data = os.pread(fd, _FIRST_BYTES, 0)
    return data if len(data) < _WHOLE_BYTES else _rest(fd, data)


def _rest(fd: int, data: bytes) -> bytes:
    """All of a file that begins so."""
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
        """The same files as the package ``rdt`` wants them: with plain OSError, and directories that can be made."""
        from rdt.fs import RealFs as Raw

        return Raw(self._root or "/")

    def open(self, path: str) -> KernelFile:
        """Open for repeated reading."""
        try:
            return _RealFile(os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC), path)
        except OSError as exc:
            raise kernel_error(exc, path, "open") from exc

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""
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
        """See ``ReadsStrangers``. O_NONBLOCK: a FIFO would keep open(2) waiting for a writer, for ever."""
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
                raise ParseError("a plain file", path, "a file that holds what is written in it")
            return status.st_uid, os.read(fd, most_bytes)
        except OSError as exc:
            raise kernel_error(exc, path, "read") from exc
        finally:
            os.close(fd)

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file."""
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
        """See ``WritesWithin``: the file is opened through the directory that was looked at, not by its path."""
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
            with os.scandir(self._at(path)) as entries:  # tells kinds without asking for every name
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as exc:
            raise kernel_error(exc, path, "list") from exc

    def exists(self, path: str) -> bool:
        """True if something is there."""
        return os.path.exists(self._at(path))

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode)."""
        try:
            status = os.stat(self._at(path))
        except OSError as exc:
            raise kernel_error(exc, path, "stat") from exc
        return status.st_dev, status.st_ino


def not_the_same(path: str, value: str) -> Gone:
    """The error for a write to a directory that is another one now."""
    return Gone(path, "write", errno.ESTALE, value, advice="another cgroup has this path now")


def write_within(fs: KernelFs, path: str, data: bytes, identity: Identity | None) -> None:
    """One write into this very directory; None: whichever has the path.

    Where ``fs`` cannot hold on to a directory (simulated trees, which nobody changes meanwhile) it is looked at first.

    Raises:
        KernelError: as ``WritesWithin.write_within``.
    """
    if identity is None:
        fs.write(path, data)
    elif (within := getattr(fs, "write_within", None)) is not None:  # isinstance of a Protocol takes 15 us
        within(path, data, identity)
    elif fs.identity(dirname(path)) != identity:
        raise not_the_same(path, data.decode(errors="replace").rstrip("\n"))
    else:
        fs.write(path, data)


def read_text(fs: KernelFs, path: str) -> str:
    """The file's text with the trailing newline removed; bytes that are no UTF-8 are replaced."""
    return fs.read(path).decode(errors="replace").rstrip("\n")
