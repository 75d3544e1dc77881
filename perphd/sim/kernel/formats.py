"""The kernel's parsing of text written to its files, lenient exactly where the kernel is.

All functions raise ``OSError`` with the kernel's errno. perphd itself parses strictly (perphd.domain); this
module imitates the kernel.
"""

from __future__ import annotations

import errno
import re

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.vfs import refuse

PAGE = 4096
COUNTER_MAX_PAGES = ((1 << 63) - 1) // PAGE
"""The page counter's maximum; a limit of this size reads ``max``."""
INT_MAX = (1 << 31) - 1

_U64 = 1 << 64
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_SUFFIX = {"K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
_LIST_PART = re.compile(r"(all|N|[0-9]+)(?:-(N|[0-9]+))?(?::([0-9]+)/([0-9]+))?")
_TRIGGER = re.compile(r"(some|full)\s*([0-9]+)\s+([0-9]+)")
_DIGITS = re.compile(r"[0-9]+")


def _integer(digits: str) -> int:
    # Base 0 as in C: 0x is hexadecimal, a leading 0 octal.
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    if len(digits) > 1 and digits[0] == "0" and all(d in "01234567" for d in digits):
        return int(digits, 8)
    return int(digits)


def text_of(data: bytes) -> str:
    """The written bytes as text without surrounding whitespace (the kernel's strstrip), cut at a NUL."""
    return data.split(b"\0")[0].decode(errors="replace").strip()


def parse_u64(data: bytes) -> int:
    """kstrtoull, base 0: no blanks, one trailing newline. EINVAL for anything else, ERANGE beyond 64 bits."""
    text = data.split(b"\0")[0].decode(errors="replace").removesuffix("\n").removeprefix("+")
    if _NUMBER.fullmatch(text) is None:
        raise refuse(errno.EINVAL)
    value = _integer(text)
    if value >= _U64:
        raise refuse(errno.ERANGE)
    return value


def parse_s64(data: bytes) -> int:
    """kstrtoll, base 0: as ``parse_u64``, with a sign."""
    return -parse_u64(data[1:]) if data.startswith(b"-") else parse_u64(data)


def parse_int(data: bytes) -> int:
    """A number for files that allow blanks around it (strstrip before kstrtoint)."""
    return parse_s64(text_of(data).encode())


def parse_switch(data: bytes, refusal: int) -> bool:
    """A switch, 0 or 1, blanks allowed; ``refusal``: errno for any other number."""
    value = parse_int(data)
    if value not in (0, 1):
        raise refuse(refusal)
    return bool(value)


def parse_count(data: bytes) -> int | None:
    """A whole number from 0, below INT_MAX, or ``max`` (None): EINVAL for no number, ERANGE for one out of range."""
    if text_of(data) == "max":
        return None
    value = parse_int(data)
    if not 0 <= value < INT_MAX:
        raise refuse(errno.ERANGE)
    return value


def parse_pid(data: bytes) -> int:
    """A process or thread id: EINVAL for anything but a number from 0 to INT_MAX."""
    text = text_of(data)
    if _NUMBER.fullmatch(text) is None or _integer(text) > INT_MAX:
        raise refuse(errno.EINVAL)
    return _integer(text)


def parse_memory_pages(data: bytes, infinite: str = "max") -> int:
    """Pages of a memory limit, rounded down (page_counter_memparse).

    An empty text is 0, numbers wrap at 64 bits; EINVAL for leftovers. ``infinite``: the word for no limit.
    """
    text = text_of(data)
    if text == infinite:
        return COUNTER_MAX_PAGES
    found = _NUMBER.match(text)
    value, rest = (_integer(found[0]), text[found.end() :]) if found else (0, text)
    if found and rest[:1].upper() in _SUFFIX:
        value, rest = value << _SUFFIX[rest[0].upper()], rest[1:]
    if rest:
        raise refuse(errno.EINVAL)
    return min(value % _U64 // PAGE, COUNTER_MAX_PAGES)


def pages_text(pages: int) -> str:
    """The content of a memory limit's file."""
    return "max\n" if pages >= COUNTER_MAX_PAGES else f"{pages * PAGE}\n"


def parse_list(text: str, limit: int) -> CpuSet:
    """A CPU or node list as bitmap_parselist reads it: parts between commas or blanks, ``N`` for the last bit,
    ``all``, and ``FIRST-LAST:USED/GROUP`` (the first USED of every GROUP).

    EINVAL for other text, ERANGE for numbers >= ``limit``.
    """
    mask = 0
    for part in re.split(r"[,\s]+", text):
        if not part:
            continue
        found = _LIST_PART.fullmatch(part)
        if found is None or (found[1] == "all" and found[2] is not None):
            raise refuse(errno.EINVAL)
        low = 0 if found[1] == "all" else _bit(found[1], limit)
        high = limit - 1 if found[1] == "all" else low if found[2] is None else _bit(found[2], limit)
        used, group = (1, 1) if found[3] is None else (int(found[3]), int(found[4]))
        if found[3] is not None and found[2] is None and found[1] != "all":
            raise refuse(errno.EINVAL)
        if high < low or group == 0 or used > group:
            raise refuse(errno.EINVAL)
        if high >= limit:
            raise refuse(errno.ERANGE)
        for start in range(low, high + 1, group):
            length = min(used, high + 1 - start) if group > 1 else high + 1 - low
            mask |= ((1 << length) - 1) << start
            if group == 1:
                break
    return CpuSet(mask)


def _bit(text: str, limit: int) -> int:
    return limit - 1 if text == "N" else int(text)


def parse_cpu_max(data: bytes, period_us: int) -> tuple[int | None, int]:
    """``QUOTA [PERIOD]`` of cpu.max in microseconds; None is ``max``; a missing period keeps ``period_us``."""
    fields = text_of(data).split()
    if not fields:
        raise refuse(errno.EINVAL)
    digits = _DIGITS.match(fields[0])  # as with sscanf, text after the digits is ignored
    if digits is None and fields[0] != "max":
        raise refuse(errno.EINVAL)
    if len(fields) > 1 and (period := _DIGITS.match(fields[1])):
        period_us = int(period[0])
    quota = None if digits is None else int(digits[0])
    if not 1000 <= period_us <= 1_000_000 or (quota is not None and quota < 1000):
        raise refuse(errno.EINVAL)
    return quota, period_us


def check_trigger(data: bytes, least_window_us: int = 500_000, multiple_us: int = 1) -> None:
    """Check a PSI trigger, ``some|full THRESHOLD WINDOW`` in microseconds; EINVAL if the kernel refuses it.

    ``multiple_us``: the window must be a multiple of it.
    """
    if not data:
        return
    found = _TRIGGER.match(data.split(b"\0")[0].decode(errors="replace"))
    if found is None:
        raise refuse(errno.EINVAL)
    threshold, window = int(found[2]), int(found[3])
    if not least_window_us <= window <= 10_000_000 or not 0 < threshold <= window:
        raise refuse(errno.EINVAL)
    if window % multiple_us:
        raise refuse(errno.EINVAL)
