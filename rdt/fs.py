"""The file operations that resctrl needs, on the running kernel or a simulated tree.

Paths are absolute as on the real host. All operations raise plain ``OSError`` with the kernel's errno;
``rdt.errors`` classifies them.
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
    """A kernel file kept open; each read gives its present content."""

    def read(self) -> bytes:
        """The whole content now; OSError ENODEV if the object behind the file has vanished."""

    def close(self) -> None:
        """Close the descriptor; closing twice is allowed."""


class Fs(Protocol):
    """File operations that resctrl needs; all raise OSError."""

    def open(self, path: str) -> OpenFile:
        """Open for repeated reading."""

    def read(self, path: str) -> bytes:
        """Read a whole file."""

    def write(self, path: str, data: bytes) -> None:
        """Write an existing file by one write(2), which the kernel parses as one command."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """True if the file or directory exists."""

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode): changes when a group is removed and recreated under the same name."""

    def mkdir(self, path: str) -> None:
        """Make one directory (in resctrl, a group)."""

    def rmdir(self, path: str) -> None:
        """Remove one directory (in resctrl, a group with its monitor groups)."""

    def lock(self, path: str, *, exclusive: bool, timeout_s: float) -> AbstractContextManager[None]:
        """Hold flock(2) on a directory; raises TimeoutError after ``timeout_s``."""


class _RealFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> bytes:
        # Files kept open are resctrl's counters, which fit in one read: no second call to find the end.
        first = os.pread(self._fd, _READ_BYTES, 0)
        return first if len(first) < _READ_BYTES else first + self.rest(len(first))

    def rest(self, offset: int) -> bytes:
        """Read from ``offset`` to the end. /proc/mounts and the like return at most a page per read."""
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
        """Read a whole file."""
        file = self._open(path)
        try:
            return file.rest(0)
        finally:
            file.close()

    def write(self, path: str, data: bytes) -> None:
        """Write an existing file by one write(2)."""
        fd = os.open(self._root + path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(self._root + path))

    def exists(self, path: str) -> bool:
        """True if the file or directory exists."""
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
