"""Files of the resctrl tree, with the kernel's answers turned into ``rdt.errors``.

The one delicate matter is ``info/last_cmd_status``. The kernel clears it at the start of a schemata, mode or tasks
write, but only after it has looked at the end of the text and found the group alive; mkdir, rmdir and the cpus files
never clear it, and their sentences pile up, one a line. A sentence is therefore taken as belonging to a failed
request only if that request surely cleared the file, or if the file has grown since before the request; and then
only its last line counts (or, of a request that cleared it, all lines: 6.12 explains a bad task in two).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from rdt.errors import Locked, from_oserror
from rdt.fs import Fs, OpenFile
from rdt.holders import lock_holders

STATUS_FILE = "info/last_cmd_status"
# With these the write never reached the part of the kernel that clears the status.
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
    """Reads and writes below one resctrl mount; every failure is a ``ResctrlError``.

    Args:
        fs: the file operations, the running kernel's or a simulated tree's.
        root: where resctrl is mounted, absolute.
        lock_timeout_s: how long to wait for other programs that hold the tree's lock; None: take no lock at all. The
            kernel serialises single operations anyway; what is lost is that several of them belong together.
    """

    def __init__(self, fs: Fs, root: str = "/sys/fs/resctrl", *, lock_timeout_s: float | None = 2.0) -> None:
        self.fs = fs
        self.root = root.rstrip("/")
        self._lock_timeout_s = lock_timeout_s

    def patient(self, lock_timeout_s: float | None) -> Access:
        """The same tree with another waiting time for its lock."""
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
        """A file kept open for repeated reading; its ``read`` raises plain OSError."""
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
        """True if something is there."""
        path = self.path(*parts)
        try:
            return self.fs.exists(path)
        except OSError as error:
            raise from_oserror(error, path, doing="looking for") from error

    def command(self, text: str, *parts: str) -> None:
        """One write of a file that clears the status first: schemata, mode, tasks. ``text`` ends in a newline."""
        path = self.path(*parts)
        try:
            self.fs.write(path, encoded(text))
        except OSError as error:
            status = "" if error.errno in _BEFORE_CLEARING else _one_line(self._status())
            raise from_oserror(error, path, doing="writing", value=text, status=status) from error

    def write_cpus(self, text: str, *parts: str) -> None:
        """One write of a cpus or cpus_list file, which does not clear the status."""
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
        """The lock that the kernel's documentation asks of programs: shared to read several files that belong
        together, exclusive to change. Not to be taken twice by one caller. Raises Locked when others hold it too long.
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
        """Who keeps this program from changing anything now, by the lock; empty if nobody does. Does not wait."""
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
        """The lines of the status file now; none where it says ok, is missing or cannot be read."""
        try:
            lines = decoded(self.fs.read(self.path(STATUS_FILE))).split("\n")
        except OSError:
            return []
        return [] if lines[0] == "ok" else [line for line in lines if line]

    def _news(self, before: list[str]) -> str:
        """The last line, if there are more of them than before."""
        after = self._status()
        grown = len(after) > len(before) and after[: len(before)] == before
        return after[-1] if after and (grown or (after != before and not before)) else ""


def decoded(data: bytes) -> str:
    """Text of a kernel file; group names may hold any byte."""
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """The bytes of a text made by ``decoded``."""
    return text.encode("utf-8", "surrogateescape")


def _one_line(lines: list[str]) -> str:
    return "; ".join(lines)
