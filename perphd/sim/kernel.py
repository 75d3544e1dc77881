"""An in-memory tree of kernel files: content is computed on read and parsed on write, with the kernel's errnos.

Knows nothing of what the files mean; ``cgroup`` and ``machine`` put the meaning in.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count

from perphd.domain.errors import KernelError, kernel_error

Reader = Callable[[], str]
Writer = Callable[[bytes], None]
"""Takes what was written, applies it or raises ``OSError`` with the kernel's errno."""

_DEVICE = 0x1D
_inodes = count(2)


def refuse(number: int) -> OSError:
    """The kernel's answer ``number`` (an errno) to a write: ``raise refuse(errno.EINVAL)``."""
    return OSError(number, "")


class File:
    """One kernel file. ``read`` None: not readable (EINVAL); ``write`` None: writes give EINVAL, as in cgroupfs."""

    __slots__ = ("dead", "inode", "read", "write")

    def __init__(self, read: Reader | None, write: Writer | None = None) -> None:
        self.read, self.write = read, write
        self.inode = next(_inodes)
        self.dead = False

    def content(self) -> bytes:
        """What a read gives now; raises OSError (ENODEV once the object behind the file is gone)."""
        if self.dead:
            raise OSError(errno.ENODEV, "")
        if self.read is None:
            raise OSError(errno.EINVAL, "")
        return self.read().encode()


class Directory:
    """Named files and directories."""

    __slots__ = ("children", "inode")

    def __init__(self) -> None:
        self.children: dict[str, File | Directory] = {}
        self.inode = next(_inodes)

    def add(self, name: str, read: Reader | str, write: Writer | None = None) -> File:
        """Put a file here; a text is a constant content."""
        file = File((lambda: read) if isinstance(read, str) else read, write)
        self.children[name] = file
        return file

    def make(self, path: str) -> Directory:
        """The directory below this one at a relative path, made with its parents where missing."""
        here = self
        for part in path.strip("/").split("/"):
            child = here.children.get(part)
            if not isinstance(child, Directory):
                child = Directory()
                here.children[part] = child
            here = child
        return here

    def remove(self, name: str) -> None:
        """Take away a file or a whole directory: everything that is open below reads ENODEV from now on."""
        child = self.children.pop(name)
        if isinstance(child, File):
            child.dead = True
            return
        for inner in list(child.children):
            child.remove(inner)


class _OpenFile:
    """A KernelFile of the simulated tree."""

    __slots__ = ("_file", "_path")

    def __init__(self, file: File, path: str) -> None:
        self._file: File | None = file
        self._path = path

    def read(self) -> bytes:
        """The whole content now. Raises Gone when the object behind the file vanished."""
        if self._file is None:
            raise kernel_error(OSError(errno.EBADF, ""), self._path, "read")
        try:
            return self._file.content()
        except OSError as exc:
            raise kernel_error(exc, self._path, "read") from exc

    def close(self) -> None:
        """Closing twice is fine."""
        self._file = None


class SimFs:
    """A ``KernelFs`` over a ``Directory``. ``on_write`` (if set) is told every write that took effect."""

    def __init__(self, root: Directory) -> None:
        self.root = root
        self.on_write: Callable[[str, str], None] | None = None

    def open(self, path: str) -> _OpenFile:
        """Open for repeated reading."""
        return _OpenFile(self._file(path, "open"), path)

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""
        file = self._file(path, "open")
        try:
            return file.content()
        except OSError as exc:
            raise kernel_error(exc, path, "read") from exc

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file."""
        shown = data.decode(errors="replace").rstrip("\n")
        file = self._file(path, "open for writing", shown)
        try:
            if file.write is None:
                raise refuse(errno.EINVAL)
            file.write(data)
        except OSError as exc:
            raise kernel_error(exc, path, "write", shown) from exc
        if self.on_write is not None:
            self.on_write(path, shown)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        node = self._node(path)
        if isinstance(node, Directory):
            return sorted(node.children)
        raise self._error(errno.ENOENT if node is None else errno.ENOTDIR, path, "list")

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory, sorted."""
        return [name for name in self.listdir(path) if isinstance(self._node(f"{path}/{name}"), Directory)]

    def exists(self, path: str) -> bool:
        """True if something is there."""
        return self._node(path) is not None

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode)."""
        node = self._node(path)
        if node is None:
            raise self._error(errno.ENOENT, path, "stat")
        return _DEVICE, node.inode

    def _node(self, path: str) -> File | Directory | None:
        node: File | Directory | None = self.root
        for part in path.split("/"):
            if part:
                node = node.children.get(part) if isinstance(node, Directory) else None
        return node

    def _file(self, path: str, operation: str, value: str | None = None) -> File:
        node = self._node(path)
        if isinstance(node, File):
            return node
        raise self._error(errno.ENOENT if node is None else errno.EISDIR, path, operation, value)

    @staticmethod
    def _error(number: int, path: str, operation: str, value: str | None = None) -> KernelError:
        return kernel_error(OSError(number, ""), path, operation, value)
