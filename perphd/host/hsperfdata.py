"""Garbage collection times of HotSpot JVMs, from their performance data files, without an agent.

``/tmp/hsperfdata_USER/PID`` (PID as the process itself sees it) is memory that the JVM updates while it runs.
A prologue of 32 bytes is followed by entries, each with a name and a value (HotSpot, perfMemory.hpp):

    prologue: magic 0xcafec0c0 (big-endian), byte order (1: little), major, minor, accessible,
              used u4, overflow u4, modified u8, offset of the first entry u4, number of entries u4
    entry:    length u4, offset of name u4, length of vector u4, type u1 (J: 64 bit, B: bytes), flags u1,
              unit u1, variability u1, offset of value u4

The file is missing with -XX:-UsePerfData and -XX:+PerfDisableSharedMem. It belongs to an application, so
nothing in it is trusted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from perphd.domain.backoff import BackoffRule, RetryPause
from perphd.domain.errors import KernelError, ParseError
from perphd.domain.reading import Reading, Unavailable, available
from perphd.host.fs import KernelFs, ListsStrangers, ReadsStrangers

MAGIC: Final = 0xCAFEC0C0
MOST_BYTES: Final = 1 << 20
"""Maximum file size read; HotSpot's default is 32 KiB."""
MOST_PASSWD_BYTES: Final = 1 << 16
"""Number of bytes of an application's /etc/passwd that are searched for its user."""
MOST_ENTRIES: Final = 10_000
MOST_NAMES: Final = 2000
"""Maximum number of names listed in search of a JVM's folder."""
MOST_JVMS: Final = 2
SEARCHED: Final = 2
SEARCH: Final = BackoffRule(5.0, 600.0)
"""Backoff between examinations of a process that is not a JVM, in seconds."""
_FOLDER: Final = "hsperfdata_"
_NO_JVM: Final = Unavailable("no process of the group is a JVM")
_PROLOGUE: Final = struct.Struct(">IBBBB")
_COLLECTOR_TIME: Final = re.compile(r"sun\.gc\.collector\.[0-9]+\.time")


def parse(data: bytes) -> dict[str, int | str]:
    """All counters and texts of the file.

    Raises:
        ParseError: the file is of another kind, incomplete or damaged.
    """
    allowed = "a HotSpot performance data file of version 2"
    if len(data) < 32:
        raise ParseError("a hsperfdata file", f"{len(data)} bytes", allowed)
    magic, order, major, _, accessible = _PROLOGUE.unpack_from(data)
    if magic != MAGIC or order not in (0, 1) or major != 2:
        raise ParseError("a hsperfdata file", data[:8].hex(), allowed)
    if not accessible:
        raise ParseError("a hsperfdata file", "a file that its JVM is still writing", allowed)
    end = "<" if order else ">"
    start, count = struct.unpack_from(f"{end}II", data, 24)
    found: dict[str, int | str] = {}
    for _ in range(min(count, MOST_ENTRIES)):
        try:
            length, name_at, vector, kind, value_at = struct.unpack_from(f"{end}IIIBxxxI", data, start)
            if length < 20:
                raise ParseError("an entry of a hsperfdata file", f"{length} bytes", "at least 20")
            name = _text(data, start + name_at, start + length)
            if kind == ord("J") and vector == 0:
                found[name] = struct.unpack_from(f"{end}q", data, start + value_at)[0]
            elif kind == ord("B"):
                found[name] = _text(data, start + value_at, start + value_at + vector)
        except struct.error as exc:
            raise ParseError(
                "an entry of a hsperfdata file", f"one at {start}", "one within the file"
            ) from exc
        start += length
    return found


def collection_s(counters: Mapping[str, int | str]) -> Reading:
    """Seconds that the JVM has spent in garbage collection since its start."""
    frequency = counters.get("sun.os.hrt.frequency")
    times = [value for name, value in counters.items() if _COLLECTOR_TIME.fullmatch(name)]
    if not isinstance(frequency, int) or frequency <= 0 or not times:
        return Unavailable("the JVM does not report its clock frequency or its time in garbage collection")
    return sum(value for value in times if isinstance(value, int)) / frequency


def find_jvm(fs: KernelFs, pid: int) -> str | Unavailable:
    """Path of the performance data of the JVM with this process id; Unavailable if the process is not a JVM.

    The folder is named after the JVM's user, as in the process's own passwd file. If that file does not list the
    user, the process's /tmp is listed instead. At most ``MOST_NAMES`` names are read, because an application
    controls the size of that folder.
    """
    if not isinstance(fs, ReadsStrangers):
        return Unavailable("the files of other programs cannot be read on this host")
    try:
        status = fs.read(f"/proc/{pid}/status").decode(errors="replace")
    except KernelError as exc:
        return Unavailable(str(exc))
    fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
    inner = (fields.get("NSpid", "").split() or [str(pid)])[-1]
    root = f"/proc/{pid}/root"
    uid = (fields.get("Uid", "").split() or [""])[0]
    names: list[str] = []
    if user := _user(fs, root, uid):
        names = [f"{_FOLDER}{user}"]
    elif isinstance(fs, ListsStrangers):
        with suppress(KernelError):
            names = fs.list_strangers(f"{root}/tmp", MOST_NAMES)
    for name in names:
        if name.startswith(_FOLDER) and fs.exists(path := f"{root}/tmp/{name}/{inner}"):
            return path
    return Unavailable(f"process {pid} has no performance data of a JVM (hsperfdata) in its /tmp")


def read_jvm(fs: KernelFs, path: str) -> Reading:
    """``collection_s`` of the JVM with this performance data; Unavailable if it cannot be read."""
    if not isinstance(fs, ReadsStrangers):
        return Unavailable("the files of other programs cannot be read on this host")
    try:
        return collection_s(parse(fs.read_strangers(path, MOST_BYTES)[1]))
    except (KernelError, ParseError) as exc:
        return Unavailable(str(exc))


def _user(fs: ReadsStrangers, root: str, uid: str) -> str:
    """The name of this user in the process's own passwd file; empty if it is not listed."""
    if not uid.isdecimal():
        return ""
    try:
        text = fs.read_strangers(f"{root}/etc/passwd", MOST_PASSWD_BYTES)[1].decode(errors="replace")
    except (KernelError, ParseError):
        return ""
    # Use no regular expression: compiling one per user takes 2 ms of a tick of the loop.
    for line in text.split("\n"):
        name, *others = line.split(":", 3)
        if len(others) == 3 and others[1] == uid and name and "/" not in name:
            return name
    return ""


@dataclass(slots=True)
class _Jvm:
    """A JVM: its file, and its figures at the last reading."""

    path: str
    at_s: float
    collection_s: float


class CollectionShare:
    """Share of time that the JVMs of one group spend in garbage collection, between two readings.

    The cost of a reading is bounded: at most ``MOST_JVMS`` are read, and ``SEARCHED`` other processes are
    examined, each again after a pause that doubles.
    """

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._jvms: dict[int, _Jvm] = {}
        self._others: dict[int, RetryPause] = {}

    def read(self, pids: tuple[int, ...], now_s: float) -> Reading:
        """The largest share among these processes since the last reading; Unavailable if none is a JVM."""
        present = frozenset(pids)
        self._jvms = {pid: jvm for pid, jvm in self._jvms.items() if pid in present}
        self._others = {pid: known for pid, known in self._others.items() if pid in present}
        shares = []
        for pid, jvm in list(self._jvms.items()):
            found = read_jvm(self._fs, jvm.path)
            if isinstance(found, Unavailable):
                del self._jvms[pid]
            elif now_s > jvm.at_s:
                share = (found - jvm.collection_s) / (now_s - jvm.at_s)
                shares.append(min(1.0, max(0.0, share)))
                self._jvms[pid] = _Jvm(jvm.path, now_s, found)
        self._search(pids, now_s)
        if shares:
            return max(shares)
        return Unavailable("first reading of the JVM: a share needs two") if self._jvms else _NO_JVM

    def _search(self, pids: tuple[int, ...], now_s: float) -> None:
        """Search for JVMs among processes that are unknown, or due for another check."""
        left = SEARCHED
        for pid in pids:
            if not left or len(self._jvms) >= MOST_JVMS:
                return
            pause = self._others.get(pid)
            if pid in self._jvms or (pause is not None and now_s < pause.until_s):
                continue
            left -= 1
            path = find_jvm(self._fs, pid)
            found = path if isinstance(path, Unavailable) else read_jvm(self._fs, path)
            if isinstance(path, str) and available(found):
                self._jvms[pid] = _Jvm(path, now_s, found)
                self._others.pop(pid, None)
            else:
                self._others.setdefault(pid, RetryPause(SEARCH)).failed(now_s)


def _text(data: bytes, start: int, end: int) -> str:
    """The text that begins here and ends with a zero byte."""
    return data[start:end].split(b"\0", 1)[0].decode(errors="replace")
