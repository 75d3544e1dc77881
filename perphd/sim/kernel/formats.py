"""What the kernel makes of text that is written to its files: lenient exactly where the kernel is.

All raise ``OSError`` with the kernel's errno. perphd itself reads strictly (perphd.domain); these are
the other side.
"""

from __future__ import annotations

import errno
import re

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.vfs import refuse

PAGE = 4096
COUNTER_MAX_PAGES = ((1 << 63) - 1) // PAGE
"""The page counter's ceiling: from here on a limit reads ``max``."""

_U64 = 1 << 64
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_SUFFIX = {"K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
_CPU_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def _integer(digits: str) -> int:
    # Base 0 as in C: 0x is hexadecimal, a leading 0 octal.
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    if len(digits) > 1 and digits[0] == "0" and all(d in "01234567" for d in digits):
        return int(digits, 8)
    return int(digits)


def text_of(data: bytes) -> str:
    """The written bytes as text without surrounding blanks (the kernel's strstrip), cut at a NUL."""
    return data.split(b"\0")[0].decode(errors="replace").strip()


def parse_u64(data: bytes) -> int:
    """kstrtoull, base 0. EINVAL for anything but digits, ERANGE beyond 64 bits."""
    text = text_of(data)
    if _NUMBER.fullmatch(text) is None:
        raise refuse(errno.EINVAL)
    value = _integer(text)
    if value >= _U64:
        raise refuse(errno.ERANGE)
    return value


def parse_s64(data: bytes) -> int:
    """kstrtoll, base 0."""
    text = text_of(data)
    return -parse_u64(text[1:].encode()) if text.startswith("-") else parse_u64(data)


def parse_memory_pages(data: bytes) -> int:
    """Pages of a memory limit, rounded down (page_counter_memparse).

    An empty text is 0, numbers wrap at 64 bits; EINVAL for leftovers.
    """
    text = text_of(data)
    if text == "max":
        return COUNTER_MAX_PAGES
    found = _NUMBER.match(text)
    value, rest = (_integer(found[0]), text[found.end() :]) if found else (0, text)
    if found and rest[:1].upper() in _SUFFIX:
        value, rest = value << _SUFFIX[rest[0].upper()], rest[1:]
    if rest:
        raise refuse(errno.EINVAL)
    return min(value % _U64 // PAGE, COUNTER_MAX_PAGES)


def parse_list(text: str, limit: int) -> CpuSet:
    """A CPU or node list: parts separated by commas or blanks. EINVAL for nonsense, ERANGE for numbers >= ``limit``."""
    mask = 0
    for part in re.split(r"[,\s]+", text):
        if not part:
            continue
        found = _CPU_PART.fullmatch(part)
        if found is None:
            raise refuse(errno.EINVAL)
        low = int(found[1])
        high = low if found[2] is None else int(found[2])
        if high < low:
            raise refuse(errno.EINVAL)
        if high >= limit:
            raise refuse(errno.ERANGE)
        mask |= ((1 << (high - low + 1)) - 1) << low
    return CpuSet(mask)


def parse_cpu_max(data: bytes, period_us: int) -> tuple[int | None, int]:
    """``QUOTA [PERIOD]`` of cpu.max in microseconds; None is ``max``; a missing period keeps ``period_us``."""
    fields = text_of(data).split()
    if not fields or not (fields[0] == "max" or fields[0].isdecimal()):
        raise refuse(errno.EINVAL)
    if len(fields) > 1 and fields[1].isdecimal():
        period_us = int(fields[1])
    quota = None if fields[0] == "max" else int(fields[0])
    if not 1000 <= period_us <= 1_000_000 or (quota is not None and quota < 1000):
        raise refuse(errno.EINVAL)
    return quota, period_us


def check_trigger(data: bytes) -> None:
    """A PSI trigger, ``some|full THRESHOLD WINDOW`` in microseconds; EINVAL for what the kernel refuses."""
    if not data:
        return
    fields = text_of(data).split()
    if len(fields) != 3 or fields[0] not in ("some", "full"):
        raise refuse(errno.EINVAL)
    if not (fields[1].isdecimal() and fields[2].isdecimal()):
        raise refuse(errno.EINVAL)
    threshold, window = int(fields[1]), int(fields[2])
    if not 500_000 <= window <= 10_000_000 or not 0 < threshold <= window:
        raise refuse(errno.EINVAL)
