"""What a HotSpot JVM tells of itself in its performance data file, without an agent: garbage collection and heap use.

``/tmp/hsperfdata_USER/PID`` (PID as the process itself sees it) is memory that the JVM updates while it runs. A
prologue of 32 bytes is followed by entries of a name and a value (HotSpot, perfMemory.hpp):

    prologue: magic 0xcafec0c0 (big-endian), byte order (1: little), major, minor, accessible,
              used u4, overflow u4, modified u8, offset of the first entry u4, number of entries u4
    entry:    length u4, offset of name u4, length of vector u4, type u1 (J: 64 bit, B: bytes), flags u1, unit u1,
              variability u1, offset of value u4

Absent with -XX:-UsePerfData and -XX:+PerfDisableSharedMem. The file is an application's: nothing in it is trusted.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import KernelError, ParseError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFs, ListsStrangers, ReadsStrangers

MAGIC: Final = 0xCAFEC0C0
MOST_BYTES: Final = 1 << 20
"""HotSpot's default is 32 KiB."""
MOST_ENTRIES: Final = 10_000
MOST_NAMES: Final = 2000
"""Of a directory that is listed in search of a JVM's folder."""
MOST_JVMS: Final = 2
SEARCHED: Final = 2
FIRST_PAUSE_S: Final = 5.0
GREATEST_PAUSE_S: Final = 600.0
_FOLDER: Final = "hsperfdata_"
_NO_JVM: Final = Unavailable("no process of the group is a JVM")
_PROLOGUE: Final = struct.Struct(">IBBBB")
_COLLECTOR_TIME: Final = re.compile(r"sun\.gc\.collector\.[0-9]+\.time")
_SPACE: Final = re.compile(r"sun\.gc\.generation\.[0-9]+\.space\.[0-9]+\.(used|capacity)")


@dataclass(frozen=True, slots=True)
class JvmMemory:
    """One JVM now. ``collection_s``: time spent in garbage collection since its start."""

    collection_s: float
    heap_used_bytes: int
    heap_capacity_bytes: int


def parse(data: bytes) -> dict[str, int | str]:
    """Every counter and text of the file.

    Raises:
        ParseError: it is no such file, not complete yet, or damaged.
    """
    allowed = "a HotSpot performance data file of version 2"
    if len(data) < 32:
        raise ParseError("a hsperfdata file", f"{len(data)} bytes", allowed)
    magic, order, major, _, accessible = _PROLOGUE.unpack_from(data)
    if magic != MAGIC or order not in (0, 1) or major != 2:
        raise ParseError("a hsperfdata file", data[:8].hex(), allowed)
    if not accessible:
        raise ParseError("a hsperfdata file", "one that its JVM is still making", allowed)
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


def memory_of(counters: Mapping[str, int | str]) -> JvmMemory | Unavailable:
    """Garbage collection and heap use from the counters, or why not."""
    frequency = counters.get("sun.os.hrt.frequency")
    times = [value for name, value in counters.items() if _COLLECTOR_TIME.fullmatch(name)]
    if not isinstance(frequency, int) or frequency <= 0 or not times:
        return Unavailable("its JVM counts no garbage collection")
    sizes = {"used": 0, "capacity": 0}
    for name, value in counters.items():
        if (match := _SPACE.fullmatch(name)) and isinstance(value, int):
            sizes[match[1]] += value
    total = sum(value for value in times if isinstance(value, int))
    return JvmMemory(total / frequency, sizes["used"], sizes["capacity"])


def find_jvm(fs: KernelFs, pid: int) -> str | Unavailable:
    """Path of the performance data of the JVM with this process number; Unavailable for a process that is none.

    The folder bears the name of the JVM's user. The process's own passwd has it; only where that does not know the user
    is its /tmp listed, and of that ``MOST_NAMES`` at most: it is an application's, and as large as that pleases.
    """
    if not isinstance(fs, ReadsStrangers):
        return Unavailable("no JVM can be read on this host")
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
    return Unavailable(f"process {pid} has no performance data in its /tmp")


def read_jvm(fs: KernelFs, path: str) -> JvmMemory | Unavailable:
    """What the JVM with this performance data tells, or why not."""
    if not isinstance(fs, ReadsStrangers):
        return Unavailable("no JVM can be read on this host")
    try:
        return memory_of(parse(fs.read_strangers(path, MOST_BYTES)[1]))
    except (KernelError, ParseError) as exc:
        return Unavailable(str(exc))


def _user(fs: ReadsStrangers, root: str, uid: str) -> str:
    """The name of this user in the process's own passwd; empty where it is not there."""
    if not uid.isdecimal():
        return ""
    try:
        text = fs.read_strangers(f"{root}/etc/passwd", MOST_BYTES)[1].decode(errors="replace")
    except (KernelError, ParseError):
        return ""
    found = re.search(rf"(?m)^([^:/\n]+):[^:\n]*:{uid}:", text)
    return found[1] if found else ""


@dataclass(slots=True)
class _Jvm:
    """A JVM: its file, and what it said at the last look."""

    path: str
    at_s: float
    collection_s: float


class CollectionShare:
    """The share of time that the JVMs of one group spend in garbage collection, between two looks.

    A look costs little, whatever is in the group: ``MOST_JVMS`` are read, and of the other processes ``SEARCHED`` are
    looked into, each again after a pause that doubles.
    """

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._jvms: dict[int, _Jvm] = {}
        self._others: dict[int, tuple[float, float]] = {}

    def read(self, pids: tuple[int, ...], now_s: float) -> Reading:
        """The greatest share among these processes since the last look; Unavailable where none is a JVM."""
        present = frozenset(pids)
        self._jvms = {pid: jvm for pid, jvm in self._jvms.items() if pid in present}
        self._others = {pid: known for pid, known in self._others.items() if pid in present}
        shares = []
        for pid, jvm in list(self._jvms.items()):
            found = read_jvm(self._fs, jvm.path)
            if isinstance(found, Unavailable):
                del self._jvms[pid]
            elif now_s > jvm.at_s:
                share = (found.collection_s - jvm.collection_s) / (now_s - jvm.at_s)
                shares.append(min(1.0, max(0.0, share)))
                self._jvms[pid] = _Jvm(jvm.path, now_s, found.collection_s)
        self._search(pids, now_s)
        if shares:
            return max(shares)
        return Unavailable("the JVM was not looked at before") if self._jvms else _NO_JVM

    def _search(self, pids: tuple[int, ...], now_s: float) -> None:
        """Look into some processes that are not known, or not since long."""
        left = SEARCHED
        for pid in pids:
            if not left or len(self._jvms) >= MOST_JVMS:
                return
            again_s, pause_s = self._others.get(pid, (-math.inf, FIRST_PAUSE_S))
            if pid in self._jvms or now_s < again_s:
                continue
            left -= 1
            path = find_jvm(self._fs, pid)
            found = path if isinstance(path, Unavailable) else read_jvm(self._fs, path)
            if isinstance(path, str) and isinstance(found, JvmMemory):
                self._jvms[pid] = _Jvm(path, now_s, found.collection_s)
                self._others.pop(pid, None)
            else:
                self._others[pid] = (now_s + pause_s, min(GREATEST_PAUSE_S, 2 * pause_s))


def _text(data: bytes, start: int, end: int) -> str:
    """The text that begins here and ends with a zero byte."""
    return data[start:end].split(b"\0", 1)[0].decode(errors="replace")
