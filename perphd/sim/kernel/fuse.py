"""The simulated tree as a mounted file system (FUSE), so that unmodified programs run against it.

One write(2) is one command, every read at offset 0 computes the content again, and a refusal has the kernel's errno,
as in kernfs. Two things differ from a real kernel: a zero-length write never arrives here (the real one passes it
on, where nearly every file ignores it), and poll(2) always reports ready, so pressure triggers do not fire.
This machine's kernel keeps flock(2) locks for the whole mount.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from perphd.sim.kernel.faces import walk, walk_to_parent
from perphd.sim.kernel.vfs import Directory, File, Node, OpenFile, caller_uid, refuse

_ACCESS: Final = {os.O_RDONLY: (True, False), os.O_WRONLY: (False, True), os.O_RDWR: (True, True)}


class MountError(Exception):
    """The mount failed or did not end properly; the text is for the user."""


@dataclass(slots=True)
class _Handle:
    """An open file: its node, and the content found by a read at offset 0, for subsequent reads."""

    file: File
    opened: OpenFile
    content: bytes = b""


class _Tree:
    """File operations requested by libfuse.

    ``gate`` synchronises them with the thread that advances time; ``caller`` returns uid, gid and pid of the
    caller.
    """

    use_ns = True
    flag_nopath = flag_nullpath_ok = True  # files of removed groups can still be read, and answer ENODEV

    def __init__(
        self,
        root: Directory,
        gate: threading.RLock,
        mounted: Callable[[], None],
        caller: Callable[[], tuple[int, int, int]],
    ) -> None:
        self._root, self._gate, self._mounted, self._caller = root, gate, mounted, caller
        self._handles: dict[int, _Handle] = {}
        self._directories: dict[int, Directory] = {}
        self._next = 1
        self._born_ns = time.time_ns()

    def init(self, path: str) -> None:
        self._mounted()

    @contextmanager
    def _call(self) -> Iterator[int]:
        """One system call: alone in the tree, on behalf of the calling user."""
        uid = self._caller()[0]
        with self._gate:
            token = caller_uid.set(uid)
            try:
                yield uid
            finally:
                caller_uid.reset(token)

    def _number(self) -> int:
        self._next += 1
        return self._next

    # -- looking ------------------------------------------------------------------------------------

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        with self._call():
            if path is None:
                return self._attributes(self._handles[fh].file if fh in self._handles else self._root)
            return self._attributes(walk(self._root, path))

    def _attributes(self, node: Node) -> dict[str, Any]:
        is_directory = isinstance(node, Directory)
        when_ns = self._born_ns if isinstance(node, Directory) else node.changed_ns or self._born_ns
        return {
            "st_ino": node.inode,
            "st_mode": (stat.S_IFDIR if is_directory else stat.S_IFREG) | node.mode,
            "st_nlink": 2 if is_directory else 1,
            "st_uid": node.uid,
            "st_gid": node.gid,
            "st_size": 0,
            "st_mtime": when_ns,
            "st_ctime": when_ns,
            "st_atime": when_ns,
        }

    def opendir(self, path: str) -> int:
        with self._call():
            node = walk(self._root, path)
            if not isinstance(node, Directory):
                raise refuse(errno.ENOTDIR)
            number = self._number()
            self._directories[number] = node
            return number

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, Any], int]]:
        with self._call():
            directory = self._directories[fh]
            listed: list[tuple[str, Node]] = [(".", directory), ("..", directory)]
            listed += directory.children.items()
            return [(name, self._attributes(node), 0) for name, node in listed]

    def releasedir(self, path: str | None, fh: int) -> int:
        with self._gate:
            self._directories.pop(fh, None)
        return 0

    # -- files --------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        with self._call() as uid:
            node = walk(self._root, path)
            if not isinstance(node, File):
                raise refuse(errno.EISDIR)
            reading, writing = _ACCESS.get(flags & os.O_ACCMODE, (True, True))
            node.check_open(uid, reading=reading, writing=writing)
            number = self._number()
            self._handles[number] = _Handle(node, OpenFile(node, writing=writing))
            return number

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        with self._call():
            handle = self._handles[fh]
            if offset == 0:
                handle.content = handle.opened.read()
            return handle.content[offset : offset + size]

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        with self._call():
            self._handles[fh].opened.write(data)
            return len(data)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        return 0  # kernfs accepts O_TRUNC and does nothing

    def release(self, path: str | None, fh: int) -> int:
        with self._gate:
            handle = self._handles.pop(fh, None)
            if handle is not None:
                handle.opened.close()
        return 0

    # -- changing the tree ----------------------------------------------------------------------------

    def mkdir(self, path: str, mode: int) -> int:
        with self._call():
            parent, name = walk_to_parent(self._root, path)
            parent.mkdir(name)
        return 0

    def rmdir(self, path: str) -> int:
        with self._call():
            parent, name = walk_to_parent(self._root, path)
            parent.rmdir(name)
        return 0

    def rename(self, old: str, new: str) -> int:
        with self._call():
            parent, name = walk_to_parent(self._root, old)
            to, new_name = walk_to_parent(self._root, new)
            parent.rename(name, to, new_name)
        return 0

    def create(self, path: str, mode: int, fi: object = None) -> int:
        raise refuse(errno.EACCES)

    def mknod(self, path: str, mode: int, dev: int) -> int:
        raise refuse(errno.EPERM)

    def unlink(self, path: str) -> int:
        raise refuse(errno.EPERM)

    def symlink(self, target: str, source: str) -> int:
        raise refuse(errno.EPERM)

    def link(self, target: str, source: str) -> int:
        raise refuse(errno.EPERM)

    def chmod(self, path: str, mode: int) -> int:
        with self._call():
            walk(self._root, path).mode = mode & 0o7777
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        unset = (-1, 0xFFFFFFFF)
        with self._call():
            node = walk(self._root, path)
            node.uid = node.uid if uid in unset else uid
            node.gid = node.gid if gid in unset else gid
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        return 0


def serve(
    root: Directory, mountpoint: str, gate: threading.RLock, mounted: Callable[[], None] = lambda: None
) -> None:
    """Mount the tree and serve it until SIGTERM, SIGINT or an unmount; on return the mount is gone.

    Must run in the main thread. ``mounted`` is called once the mount exists. If this process is killed
    (SIGKILL), the mount stays and answers ENOTCONN until it is removed with umount(8).

    Raises:
        MountError: the tree could not be mounted; the message says what to do.
    """
    try:
        import mfusepy  # loads libfuse, which is not installed everywhere
    except (ImportError, OSError) as exc:
        raise MountError(f"{exc}: install perphd[fuse], and libfuse3 (Debian package fuse3)") from exc
    there = False

    def initialised() -> None:
        nonlocal there
        there = True
        mounted()

    try:
        mfusepy.FUSE(
            _Tree(root, gate, initialised, mfusepy.fuse_get_context),
            mountpoint,
            foreground=True,
            nothreads=True,
            fsname="perphd-sim",
            subtype="perphd",
            use_ino=True,
            direct_io=True,
            attr_timeout=0,
            entry_timeout=0,
            negative_timeout=0,
            default_permissions=True,
            allow_other=os.geteuid() == 0,
        )
    except RuntimeError as exc:
        if there:
            return  # libfuse reports an end by signal as an error of its loop
        raise MountError(
            f"{mountpoint}: libfuse could not mount (error {exc}); see its message on standard error. "
            "It needs /dev/fuse, fusermount3 (Debian package fuse3) and an empty directory of your own"
        ) from exc
