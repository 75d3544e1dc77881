"""An in-memory tree of kernel files (kernfs): content is computed on read and parsed on write.

It does not know the meaning of the files, which ``cgroup2``, ``cgroup1``, ``resctrl`` and ``machine`` define.
Everything raises plain ``OSError`` with the kernel's errno. ``faces`` resolves paths and translates errors; the FUSE
mount (``fuse``) works on the same nodes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Final

Reader = Callable[[], str]
Writer = Callable[[bytes], None]
"""Applies written bytes, or raises ``OSError`` with the kernel's errno."""

MAX_WRITE_BYTES: Final = 4096
"""Largest write in bytes: kernfs accepts one page as one command (``atomic_write_len``); more is E2BIG."""
MAX_NAME_BYTES: Final = 255
DEVICE: Final = 0x1D
"""st_dev of all files in a simulated tree."""
OWN_PID: Final = 1
"""The process that makes system calls on a simulated tree by default."""

caller_uid: ContextVar[int] = ContextVar("caller_uid", default=0)
"""The caller of the present system call: set by the faces, read by files that check more than their mode."""

_inodes = count(2)


@dataclass(frozen=True, slots=True)
class Flock:
    """A lock of flock(2) that process ``pid`` holds on a directory."""

    pid: int
    exclusive: bool


def refuse(number: int) -> OSError:
    """The kernel's answer ``number`` (an errno): ``raise refuse(errno.EINVAL)``."""
    return OSError(number, os.strerror(number))


class File:
    """One kernel file.

    Args:
        read: returns the content; None: a read fails with EINVAL.
        write: applies one write; None: a write fails with EINVAL.
        mode: permission bits; by default 0444, 0644 or 0200, depending on ``read`` and ``write``.
        strict_open: the file system checks the mode even for root, so that opening a read-only file for
            writing is EACCES (resctrl does, cgroupfs does not).
        per_open: creates the writer of one open file, for files whose writes belong to the open file (a PSI trigger);
            it takes precedence over ``write``.
    """

    __slots__ = (
        "changed_ns",
        "dead",
        "gid",
        "inode",
        "mode",
        "per_open",
        "read",
        "strict_open",
        "uid",
        "write",
    )

    def __init__(
        self,
        read: Reader | None,
        write: Writer | None = None,
        *,
        mode: int | None = None,
        strict_open: bool = False,
        per_open: Callable[[], Writer] | None = None,
    ) -> None:
        self.read, self.write, self.per_open = read, write, per_open
        writable = write is not None or per_open is not None
        usual = (0o644 if writable else 0o444) if read is not None else 0o200
        self.mode = usual if mode is None else mode
        self.strict_open = strict_open
        self.uid = self.gid = 0
        self.changed_ns = 0  # time of its last change, for files whose readers use it; 0: not recorded
        self.inode = next(_inodes)
        self.dead = False

    def content(self) -> bytes:
        """The present content; OSError: ENODEV once the object behind the file is gone, EINVAL if unreadable."""
        if self.dead:
            raise refuse(errno.ENODEV)
        if self.read is None:
            raise refuse(errno.EINVAL)
        return self.read().encode()

    def check_open(self, uid: int, *, reading: bool, writing: bool) -> None:
        """Check that ``uid`` may open it in this way; OSError: EACCES."""
        _check_mode(self, uid, (4 if reading else 0) | (2 if writing else 0))
        if self.strict_open and ((reading and not self.mode & 0o444) or (writing and not self.mode & 0o222)):
            raise refuse(errno.EACCES)


class OpenFile:
    """A file kept open: reads give the present content, every write is one command."""

    __slots__ = ("_file", "_writer")

    def __init__(self, file: File, *, writing: bool = False) -> None:
        self._file: File | None = file
        self._writer: Writer | None = None
        if writing:
            self._writer = file.per_open() if file.per_open is not None else file.write

    def read(self) -> bytes:
        """The whole content now; OSError: ENODEV when the object behind the file vanished, EBADF when closed."""
        if self._file is None:
            raise refuse(errno.EBADF)
        return self._file.content()

    def write(self, data: bytes) -> None:
        """One write(2); OSError: the kernel's refusal."""
        if self._file is None:
            raise refuse(errno.EBADF)
        if self._file.dead:
            raise refuse(errno.ENODEV)
        if len(data) > MAX_WRITE_BYTES:
            raise refuse(errno.E2BIG)
        if self._writer is None:
            raise refuse(errno.EINVAL)
        self._writer(data)

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file = self._writer = None


class Directory:
    """Named files and directories.

    Hooks decide what a user may do with it; without them the answer is EPERM, as in kernfs:

    - ``on_mkdir(name)`` on the parent directory; it must add the new directory itself.
    - ``on_rmdir()`` on the directory to be removed; it must remove itself from its parent.
    - ``on_rename(new_parent, new_name)`` on the directory to be moved.
    """

    __slots__ = (
        "children",
        "dead",
        "flocks",
        "gid",
        "inode",
        "mode",
        "on_mkdir",
        "on_rename",
        "on_rmdir",
        "strict_open",
        "uid",
    )

    def __init__(self, *, strict_open: bool = False) -> None:
        self.children: dict[str, File | Directory] = {}
        self.strict_open = strict_open
        self.mode, self.uid, self.gid = 0o755, 0, 0
        self.inode = next(_inodes)
        self.dead = False
        self.on_mkdir: Callable[[str], None] | None = None
        self.on_rmdir: Callable[[], None] | None = None
        self.on_rename: Callable[[Directory, str], None] | None = None
        self.flocks: list[Flock] = []

    def add(
        self,
        name: str,
        read: Reader | str | None,
        write: Writer | None = None,
        *,
        mode: int | None = None,
        per_open: Callable[[], Writer] | None = None,
    ) -> File:
        """Add a file, or replace the file of that name. A ``read`` that is a text is the file's constant content."""
        reader = (lambda: read) if isinstance(read, str) else read
        file = File(reader, write, mode=mode, strict_open=self.strict_open, per_open=per_open)
        file.uid, file.gid = self.uid, self.gid
        self.children[name] = file
        return file

    def make(self, path: str) -> Directory:
        """The directory at a relative path below this one; it and missing parents are created."""
        here = self
        for part in path.strip("/").split("/"):
            child = here.children.get(part)
            if not isinstance(child, Directory):
                child = Directory(strict_open=here.strict_open)
                here.children[part] = child
            here = child
        return here

    def remove(self, name: str) -> None:
        """Remove a file or a whole directory; open files below it then fail with ENODEV."""
        child = self.children.pop(name)
        child.dead = True
        if isinstance(child, Directory):
            for inner in list(child.children):
                child.remove(inner)

    # -- system calls ---------------------------------------------------------------------------------

    def mkdir(self, name: str) -> None:
        """mkdir(2) here.

        OSError: EEXIST if the name exists, ENAMETOOLONG, EACCES without write permission, EPERM without
        ``on_mkdir``, or the error of that hook.
        """
        if name in self.children:
            raise refuse(errno.EEXIST)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise refuse(errno.ENAMETOOLONG)
        self.check_access(2)
        if self.on_mkdir is None:
            raise refuse(errno.EPERM)
        self.on_mkdir(name)

    def rmdir(self, name: str) -> None:
        """rmdir(2) of a directory here.

        OSError: ENOENT if the name does not exist, ENOTDIR for a file, EACCES without write permission, EPERM
        without ``on_rmdir``, or the error of that hook.
        """
        child = self._child(name)
        if not isinstance(child, Directory):
            raise refuse(errno.ENOTDIR)
        self.check_access(2)
        if child.on_rmdir is None:
            raise refuse(errno.EPERM)
        child.on_rmdir()

    def rename(self, name: str, to: Directory, new_name: str) -> None:
        """rename(2) of an entry.

        OSError: ENOENT if the name does not exist, EACCES without write permission, EEXIST if the new name
        exists, EPERM without ``on_rename``, or the error of that hook.
        """
        child = self._child(name)
        self.check_access(2)
        to.check_access(2)
        if new_name in to.children:
            raise refuse(errno.EEXIST)
        if not isinstance(child, Directory) or child.on_rename is None:
            raise refuse(errno.EPERM)
        child.on_rename(to, new_name)

    def check_access(self, wanted: int) -> None:
        """Check that the caller has these rights (4 read, 2 change, 1 traverse) here; OSError: EACCES."""
        _check_mode(self, caller_uid.get(), wanted)

    def try_lock(self, *, exclusive: bool, pid: int = OWN_PID) -> bool:
        """flock(2) by process ``pid`` without waiting: True if the lock was taken; release it with ``unlock``."""
        if any(exclusive or held.exclusive for held in self.flocks):
            return False
        self.flocks.append(Flock(pid, exclusive))
        return True

    def unlock(self, *, exclusive: bool, pid: int = OWN_PID) -> None:
        """Release a lock that the same process took with the same kind."""
        self.flocks.remove(Flock(pid, exclusive))

    def _child(self, name: str) -> File | Directory:
        child = self.children.get(name)
        if child is None:
            raise refuse(errno.ENOENT)
        return child


Node = File | Directory


def _check_mode(node: Node, uid: int, wanted: int) -> None:
    # Root passes (CAP_DAC_OVERRIDE). Groups are not modelled: the last permission bits apply to all users
    # except the owner.
    if uid == 0:
        return
    granted = node.mode >> 6 if uid == node.uid else node.mode
    if wanted & ~granted & 7:
        raise refuse(errno.EACCES)
