"""Files of the resctrl tree; the kernel's errors become ``rdt.errors``.

The kernel explains failures in ``info/last_cmd_status``. It clears this file at the start of a schemata, mode
or tasks write, but only after checking the end of the text and that the group exists. mkdir, rmdir and the
cpus files never clear it; their messages accumulate, one a line. A message is therefore attributed to a
failed request only if that request certainly cleared the file, or if the file has grown since before the
request. In the second case only its last line counts.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rdt.errors import Locked, from_oserror
from rdt.fs import Fs, OpenFile

STATUS_FILE = "info/last_cmd_status"
# A write that failed with one of these never reached the kernel code that clears the status.
_BEFORE_CLEARING = frozenset(
    {
        errno.ENOENT,
        errno.ENODEV,
        errno.EACCES,
        errno.E2BIG,
        errno.EROFS,
        errno.EIO,
        errno.ENOTDIR,
        errno.EISDIR,
    }
)


class Access:
    """Reads and writes in one resctrl mount; every failure is a ``ResctrlError``.

    Args:
        fs: the file operations, the running kernel's or a simulated tree's.
        root: absolute path of the resctrl mount.
        lock_timeout_s: how long to wait for other programs that hold the tree's lock; None: take no lock.
            Without the lock, the kernel still serialises individual operations, but not sequences of them.
    """

    def __init__(self, fs: Fs, root: str = "/sys/fs/resctrl", *, lock_timeout_s: float | None = 2.0) -> None:
        self.fs = fs
        self.root = root.rstrip("/")
        self._lock_timeout_s = lock_timeout_s

    def patient(self, lock_timeout_s: float | None) -> Access:
        """The same tree with a different lock timeout."""
        return Access(self.fs, self.root, lock_timeout_s=lock_timeout_s)

    def path(self, *parts: str) -> str:
        """The absolute path of a file of the tree; empty parts are left out."""
        return "/".join((self.root, *(part for part in parts if part)))

    def read(self, *parts: str) -> str:
        """The text of a file."""
        path = self.path(*parts)
        try:
            return decoded(self.fs.read(path))
        except OSError as error:
            raise from_oserror(error, path, doing="reading") from error

    def open(self, *parts: str) -> OpenFile:
        """Open a file for repeated reading; its ``read`` raises plain OSError."""
        path = self.path(*parts)
        try:
            return self.fs.open(path)
        except OSError as error:
            raise from_oserror(error, path, doing="opening") from error

    def listdir(self, *parts: str) -> list[str]:
        """Names in a directory, sorted."""
        path = self.path(*parts)
        try:
            return self.fs.listdir(path)
        except OSError as error:
            raise from_oserror(error, path, doing="listing") from error

    def identity(self, *parts: str) -> tuple[int, int]:
        """(device, inode) of a directory or file."""
        path = self.path(*parts)
        try:
            return self.fs.identity(path)
        except OSError as error:
            raise from_oserror(error, path, doing="looking at") from error

    def exists(self, *parts: str) -> bool:
        """True if the file or directory exists."""
        path = self.path(*parts)
        try:
            return self.fs.exists(path)
        except OSError as error:
            raise from_oserror(error, path, doing="looking for") from error

    def command(self, text: str, *parts: str) -> None:
        """Write a file (schemata, mode or tasks) for which the kernel clears the status first. ``text`` ends
        in a newline.
        """
        path = self.path(*parts)
        try:
            self.fs.write(path, encoded(text))
        except OSError as error:
            status = "" if error.errno in _BEFORE_CLEARING else _one_line(self._status())
            raise from_oserror(error, path, doing="writing", value=text, status=status) from error

    def write_cpus(self, text: str, *parts: str) -> None:
        """Write a cpus or cpus_list file, for which the kernel does not clear the status."""
        before = self._status()
        path = self.path(*parts)
        try:
            self.fs.write(path, encoded(text))
        except OSError as error:
            raise from_oserror(error, path, doing="writing", value=text, status=self._news(before)) from error

    def mkdir(self, *parts: str) -> None:
        """Make a group."""
        before = self._status()
        path = self.path(*parts)
        try:
            self.fs.mkdir(path)
        except OSError as error:
            raise from_oserror(error, path, doing="making the group", status=self._news(before)) from error

    def rmdir(self, *parts: str) -> None:
        """Remove a group."""
        before = self._status()
        path = self.path(*parts)
        try:
            self.fs.rmdir(path)
        except OSError as error:
            raise from_oserror(error, path, doing="removing the group", status=self._news(before)) from error

    @contextmanager
    def lock(self, *, exclusive: bool) -> Iterator[None]:
        """Hold the lock that the kernel's documentation asks programs to take.

        Shared for consistent reads of several files, exclusive for changes. Not reentrant. Raises Locked when
        other programs hold it for longer than the timeout.
        """
        if self._lock_timeout_s is None:
            yield
            return
        held = self.fs.lock(self.path(), exclusive=exclusive, timeout_s=self._lock_timeout_s)
        try:
            held.__enter__()
        except TimeoutError as error:
            raise Locked(self.path(), doing="locking", reason=self._who_holds_it()) from error
        except OSError as error:
            raise from_oserror(error, self.path(), doing="locking") from error
        try:
            yield
        finally:
            held.__exit__(None, None, None)

    def is_locked(self) -> str:
        """Description of the lock holders that prevent changes now; empty if there are none. Does not wait."""
        if self._lock_timeout_s is None:
            return ""
        held = self.fs.lock(self.path(), exclusive=True, timeout_s=0.0)
        try:
            held.__enter__()
        except TimeoutError:
            return self._who_holds_it()
        except OSError as error:
            raise from_oserror(error, self.path(), doing="locking") from error
        held.__exit__(None, None, None)
        return ""

    def _who_holds_it(self) -> str:
        holders = lock_holders(self.fs, self.path())
        if not holders:
            return "another program holds the lock (/proc/locks does not name it)"
        return f"the lock is held by {', '.join(map(str, holders))}"

    def _status(self) -> list[str]:
        """The lines of the status file; empty if the status is ok, or the file is missing or unreadable."""
        try:
            lines = decoded(self.fs.read(self.path(STATUS_FILE))).split("\n")
        except OSError:
            return []
        return [] if lines[0] == "ok" else [line for line in lines if line]

    def _news(self, before: list[str]) -> str:
        """The last status line, if a line was added since ``before``."""
        after = self._status()
        grown = len(after) > len(before) and after[: len(before)] == before
        return after[-1] if after and (grown or (after != before and not before)) else ""


def decoded(data: bytes) -> str:
    """Decode the text of a kernel file; group names may hold any byte."""
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """Encode a text made by ``decoded``."""
    return text.encode("utf-8", "surrogateescape")


def _one_line(lines: list[str]) -> str:
    return "; ".join(lines)


# "1: FLOCK  ADVISORY  WRITE 1234 00:1c:1 0 EOF"; a waiting process has "->" before FLOCK.
_LINE = re.compile(
    r"\d+: FLOCK\s+\S+\s+(?P<kind>\S+)\s+(?P<pid>-?\d+)\s+(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>\d+)\s"
)
_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of the lock.

    ``command`` and ``uid`` are None if the process has ended; a child may have inherited the lock.
    """

    pid: int
    exclusive: bool
    command: str | None
    uid: int | None

    def __str__(self) -> str:
        kind = "exclusive" if self.exclusive else "shared"
        if self.command is None:
            return f"pid {self.pid} ({kind}; ended; a process that inherited the lock holds it)"
        return f"pid {self.pid} ({self.command}, uid {self.uid}, {kind})"


def lock_holders(fs: Fs, path: str) -> tuple[Holder, ...]:
    """Processes that hold flock(2) on a directory; empty if /proc/locks lists none."""
    try:
        device, inode = fs.identity(path)
        text = fs.read("/proc/locks").decode(errors="replace")
    except OSError:
        return ()
    wanted = (os.major(device), os.minor(device), inode)
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and (int(match["major"], 16), int(match["minor"], 16), int(match["inode"])) == wanted:
            found.append(_holder(fs, int(match["pid"]), match["kind"] == "WRITE"))
    return tuple(found)


def _holder(fs: Fs, pid: int, exclusive: bool) -> Holder:
    try:
        name = fs.read(f"/proc/{pid}/comm").decode(errors="replace").strip()
        uid = _UID.search(fs.read(f"/proc/{pid}/status").decode(errors="replace"))
    except OSError:
        return Holder(pid, exclusive, None, None)
    # Every user may take the lock under any name, and people read the name in a terminal.
    command = "".join(each if each.isprintable() else "?" for each in name)
    return Holder(pid, exclusive, command, int(uid[1]) if uid else None)
