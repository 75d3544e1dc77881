"""Two interfaces to one tree of kernel files. ``RawFs`` answers like system calls (``rdt.fs.Fs``, plain
OSError), ``SimFs`` as perphd's view of the kernel (``perphd.host.fs.KernelFs``, KernelError classes).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from perphd.domain.errors import ParseError, kernel_error
from perphd.sim.kernel.vfs import DEVICE, Directory, File, Node, OpenFile, caller_uid, refuse

_LOCK_POLL_S: Final = 0.01


def walk(root: Directory, path: str) -> Node:
    """The node at an absolute path.

    OSError: ENOENT if a part does not exist, ENOTDIR if a part before the last is a file.
    """
    node: Node = root
    for part in path.split("/"):
        if not part:
            continue
        if not isinstance(node, Directory):
            raise refuse(errno.ENOTDIR)
        child = node.children.get(part)
        if child is None:
            raise refuse(errno.ENOENT)
        node = child
    return node


def walk_to_parent(root: Directory, path: str) -> tuple[Directory, str]:
    """The directory that contains (or would contain) the last part of a path, and that part.

    OSError: for the parts before the last, ENOENT if one does not exist, ENOTDIR if one is a file.
    """
    folder, _, name = path.rstrip("/").rpartition("/")
    parent = walk(root, folder)
    if not isinstance(parent, Directory):
        raise refuse(errno.ENOTDIR)
    return parent, name


class RawFs:
    """System calls on a tree by user ``uid``: an ``rdt.fs.Fs``. Everything raises OSError.

    ``on_write`` (if set) is called with path and text of every successful write.
    """

    def __init__(self, root: Directory, uid: int = 0) -> None:
        self.root, self.uid = root, uid
        self.on_write: Callable[[str, str], None] | None = None

    def open(self, path: str) -> OpenFile:
        """Open for repeated reading."""
        file = self._file(path)
        file.check_open(self.uid, reading=True, writing=False)
        return OpenFile(file)

    def open_for_writing(self, path: str) -> OpenFile:
        """Open for reading and writing if the file is readable, else for writing only."""
        file = self._file(path)
        file.check_open(self.uid, reading=False, writing=True)
        with self._as_caller():
            return OpenFile(file, writing=True)

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""
        return self.open(path).read()

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file."""
        opened = self.open_for_writing(path)
        with self._as_caller():
            opened.write(data)
        if self.on_write is not None:
            self.on_write(path, data.decode(errors="replace").rstrip("\n"))

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(self._directory(path).children)

    def exists(self, path: str) -> bool:
        """True if the path exists."""
        try:
            walk(self.root, path)
        except OSError:
            return False
        return True

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode)."""
        return DEVICE, walk(self.root, path).inode

    def mkdir(self, path: str) -> None:
        """Make one directory: in resctrl and cgroupfs, a group."""
        parent, name = walk_to_parent(self.root, path)
        with self._as_caller():
            parent.mkdir(name)

    def rmdir(self, path: str) -> None:
        """Remove one directory: in resctrl and cgroupfs, a group."""
        parent, name = walk_to_parent(self.root, path)
        with self._as_caller():
            parent.rmdir(name)

    def rename(self, path: str, to: str) -> None:
        """Rename or move a directory."""
        parent, name = walk_to_parent(self.root, path)
        new_parent, new_name = walk_to_parent(self.root, to)
        with self._as_caller():
            parent.rename(name, new_parent, new_name)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Change the owner of a file or directory."""
        node = walk(self.root, path)
        node.uid, node.gid = uid, gid

    def unlink(self, path: str) -> None:
        """Always refused: EPERM, because kernel files cannot be removed individually; EISDIR for a directory,
        ENOENT if it does not exist.
        """
        self._file(path)
        raise refuse(errno.EPERM)

    def create(self, path: str) -> None:
        """Always refused: EEXIST if the name exists, else EACCES: programs cannot create kernel files."""
        parent, name = walk_to_parent(self.root, path)
        raise refuse(errno.EEXIST if name in parent.children else errno.EACCES)

    @contextmanager
    def lock(self, path: str, *, exclusive: bool, timeout_s: float) -> Iterator[None]:
        """Hold flock(2) on a directory; raises TimeoutError after ``timeout_s``."""
        directory = self._directory(path)
        deadline_s = time.monotonic() + timeout_s
        while not directory.try_lock(exclusive=exclusive):
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{path}: another program holds its lock")
            time.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            directory.unlock(exclusive=exclusive)

    @contextmanager
    def _as_caller(self) -> Iterator[None]:
        token = caller_uid.set(self.uid)
        try:
            yield
        finally:
            caller_uid.reset(token)

    def _file(self, path: str) -> File:
        node = walk(self.root, path)
        if isinstance(node, File):
            return node
        raise refuse(errno.EISDIR)

    def _directory(self, path: str) -> Directory:
        node = walk(self.root, path)
        if isinstance(node, Directory):
            return node
        raise refuse(errno.ENOTDIR)


class _KernelFile:
    """A KernelFile of the simulated tree."""

    __slots__ = ("_opened", "_path")

    def __init__(self, opened: OpenFile, path: str) -> None:
        self._opened, self._path = opened, path

    def read(self) -> bytes:
        """The whole present content. Raises Gone if the object behind the file has vanished."""
        try:
            return self._opened.read()
        except OSError as exc:
            raise kernel_error(exc, self._path, "read") from exc

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._opened.close()


class SimFs:
    """A ``KernelFs`` over a ``Directory``. ``raw`` is the other interface to the same tree."""

    def __init__(self, root: Directory, uid: int = 0) -> None:
        self.raw = RawFs(root, uid)

    @property
    def root(self) -> Directory:
        """The tree."""
        return self.raw.root

    @property
    def on_write(self) -> Callable[[str, str], None] | None:
        """Called with path and text of every successful write, through either interface."""
        return self.raw.on_write

    @on_write.setter
    def on_write(self, told: Callable[[str, str], None] | None) -> None:
        self.raw.on_write = told

    def open(self, path: str) -> _KernelFile:
        """Open for repeated reading."""
        try:
            return _KernelFile(self.raw.open(path), path)
        except OSError as exc:
            raise kernel_error(exc, path, "open") from exc

    def read(self, path: str) -> bytes:
        """Open, read whole, close."""
        try:
            return self.raw.read(path)
        except OSError as exc:
            raise kernel_error(exc, path, "read") from exc

    def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        """(uid of the owner, the first ``most_bytes``): see ``perphd.host.fs.ReadsStrangers``."""
        try:
            node = walk(self.root, path)
            if not isinstance(node, File):
                raise ParseError("a plain file", path, "a file, not a directory")
            return node.uid, self.raw.read(path)[:most_bytes]
        except OSError as exc:
            raise kernel_error(exc, path, "read") from exc

    def write(self, path: str, data: bytes) -> None:
        """One write(2) of an existing file."""
        try:
            self.raw.write(path, data)
        except OSError as exc:
            raise kernel_error(exc, path, "write", data.decode(errors="replace").rstrip("\n")) from exc

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        try:
            return self.raw.listdir(path)
        except OSError as exc:
            raise kernel_error(exc, path, "list") from exc

    def subdirectories(self, path: str) -> list[str]:
        """Names of the directories in a directory, sorted."""
        try:
            node = walk(self.root, path)
            if not isinstance(node, Directory):
                raise refuse(errno.ENOTDIR)
        except OSError as exc:
            raise kernel_error(exc, path, "list") from exc
        return sorted(name for name, child in node.children.items() if isinstance(child, Directory))

    def exists(self, path: str) -> bool:
        """True if the path exists."""
        return self.raw.exists(path)

    def identity(self, path: str) -> tuple[int, int]:
        """(device, inode)."""
        try:
            return self.raw.identity(path)
        except OSError as exc:
            raise kernel_error(exc, path, "stat") from exc
