"""Who holds the lock of a resctrl tree, as /proc/locks tells.

The lock is flock(2) on the mount point. It is advisory and anybody who may read the directory can take it, so a
program that waits in vain must be able to say for whom.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from rdt.fs import Fs

# "1: FLOCK  ADVISORY  WRITE 1234 00:1c:1 0 EOF"; a waiter has "->" before FLOCK.
_LINE = re.compile(
    r"\d+: FLOCK\s+\S+\s+(?P<kind>\S+)\s+(?P<pid>-?\d+)\s+(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>\d+)\s"
)
_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of the lock. ``command`` and ``uid`` are None where the process has ended: a child may hold on."""

    pid: int
    exclusive: bool
    command: str | None
    uid: int | None

    def __str__(self) -> str:
        kind = "exclusive" if self.exclusive else "shared"
        if self.command is None:
            return f"pid {self.pid} ({kind}; it has ended, a process that inherited the lock holds it)"
        return f"pid {self.pid} ({self.command}, uid {self.uid}, {kind})"


def lock_holders(fs: Fs, path: str) -> tuple[Holder, ...]:
    """The processes that took flock(2) on a directory; empty where none did, or /proc/locks does not tell."""
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
        command = fs.read(f"/proc/{pid}/comm").decode(errors="replace").strip()
        uid = _UID.search(fs.read(f"/proc/{pid}/status").decode(errors="replace"))
    except OSError:
        return Holder(pid, exclusive, None, None)
    return Holder(pid, exclusive, command, int(uid[1]) if uid else None)
