"""The file operations that resctrl needs, behind one seam: the running kernel's, or a simulated tree's.

Paths are absolute as on the real host. Everything raises plain ``OSError`` with the kernel's errno; what that
means is told one level up (``rdt.errors``).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

_READ_BYTES = 1 << 16
_LOCK_POLL_S = 0.01


class OpenFile(Protocol):
    """A kernel file kept open: reading again gives the present content."""

    def read(self) -> bytes:
        """The whole content now; OSError ENODEV when the object behind the file vanished."""

    def close(self) -> None:
        """Give the descriptor back; closing twice is fine."""


class Fs(Protocol):
    """File operations as resctrl needs them; all raise OSError."""

    def open(self, path: str) -> OpenFile:
        """Open for repeated reading."""

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file (never creates); the kernel parses it as one command."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """True if something is there."""

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode): changes when a group is removed and made again under the same name."""

    def mkdir(self, path: str) -> None:
        """Make one directory: in resctrl, a group."""

    def rmdir(self, path: str) -> None:
        """Remove one directory: in resctrl, a group and all that belongs to it."""

    def lock(self, path: str, *, exclusive: bool, timeout_s: float) -> AbstractContextManager[None]:
        """Hold flock(2) on a directory; raises TimeoutError after ``timeout_s``."""


class _RealFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> bytes:
        # What is kept open are resctrl's counters, which come in one piece: no second call to see the end.
        first = os.pread(self._fd, _READ_BYTES, 0)
        return first if len(first) < _READ_BYTES else first + self.rest(len(first))

    def rest(self, offset: int) -> bytes:
        """From ``offset`` to the end. Files of many records (/proc/mounts) give a page at most at a time."""
        parts: list[bytes] = []
        while chunk := os.pread(self._fd, _READ_BYTES, offset):
            parts.append(chunk)
            offset += len(chunk)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class RealFs:
    """The running kernel's files, or a tree below ``root`` (a FUSE mount, a fixture)."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = str(root).rstrip("/")

    def open(self, path: str) -> OpenFile:
        """Open for repeated reading."""
        return self._open(path)

    def _open(self, path: str) -> _RealFile:
        return _RealFile(os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC))

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""
        file = self._open(path)
        try:
            return file.rest(0)
        finally:
            file.close()

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file."""
        fd = os.open(self._root + path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(self._root + path))

    def exists(self, path: str) -> bool:
        """True if something is there."""
        return os.path.exists(self._root + path)

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode)."""
        status = os.stat(self._root + path)
        return status.st_dev, status.st_ino

    def mkdir(self, path: str) -> None:
        """Make one directory."""
        os.mkdir(self._root + path)

    def rmdir(self, path: str) -> None:
        """Remove one directory."""
        os.rmdir(self._root + path)

    @contextmanager
    def lock(self, path: str, *, exclusive: bool, timeout_s: float) -> Iterator[None]:
        """Hold flock(2) on a directory; raises TimeoutError after ``timeout_s``."""
        fd = os.open(self._root + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            deadline_s = time.monotonic() + timeout_s
            while True:
                try:
                    fcntl.flock(fd, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline_s:
                        raise TimeoutError(f"{path}: another program holds its lock") from None
                    time.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(fd)
