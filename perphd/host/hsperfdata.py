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

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import KernelError, ParseError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFs, ReadsStrangers

MAGIC: Final = 0xCAFEC0C0
MOST_BYTES: Final = 1 << 20
"""HotSpot's default is 32 KiB."""
MOST_ENTRIES: Final = 10_000
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


def read_jvm(fs: KernelFs, pid: int) -> JvmMemory | Unavailable:
    """What the JVM with this process number tells; Unavailable for a process that is none, or that tells nothing."""
    if not isinstance(fs, ReadsStrangers):
        return Unavailable("no JVM can be read on this host")
    try:
        status = fs.read(f"/proc/{pid}/status").decode(errors="replace")
    except KernelError as exc:
        return Unavailable(str(exc))
    inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), str(pid))
    folder = f"/proc/{pid}/root/tmp"
    reason = f"process {pid} has no performance data in its /tmp"
    with suppress(KernelError):
        for name in fs.listdir(folder):
            path = f"{folder}/{name}/{inner}"
            if not name.startswith("hsperfdata_") or not fs.exists(path):
                continue
            try:
                return memory_of(parse(fs.read_strangers(path, MOST_BYTES)[1]))
            except (KernelError, ParseError) as exc:
                reason = str(exc)
    return Unavailable(reason)


class CollectionShare:
    """The share of time that the JVMs of one group spend in garbage collection, between two looks."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._before: dict[int, tuple[float, float]] = {}

    def read(self, pids: tuple[int, ...], now_s: float) -> Reading:
        """The greatest share among these processes since the last look; Unavailable where none is a JVM."""
        reason, greatest = "no process of the group is a JVM", -1.0
        now: dict[int, tuple[float, float]] = {}
        for pid in pids:
            found = read_jvm(self._fs, pid)
            if isinstance(found, Unavailable):
                continue
            now[pid] = (now_s, found.collection_s)
            before = self._before.get(pid)
            if before is None or now_s <= before[0]:
                reason = "the JVM was not looked at before"
                continue
            share = (found.collection_s - before[1]) / (now_s - before[0])
            greatest = max(greatest, min(1.0, max(0.0, share)))
        self._before = now
        return greatest if greatest >= 0 else Unavailable(reason)


def _text(data: bytes, start: int, end: int) -> str:
    """The text that begins here and ends with a zero byte."""
    return data[start:end].split(b"\0", 1)[0].decode(errors="replace")
