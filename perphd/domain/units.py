"""Sizes and durations as people write them, parsed strictly.

The kernel itself is lenient in harmful ways (an empty line sets memory.max to 0, ``100 `` means 100 bytes), so
perphd checks values before it writes them.
"""

from __future__ import annotations

import re

from perphd.domain.errors import ParseError

_SIZE = re.compile(r"([0-9]{1,19})(?:([KMGT])(?:iB?)?)?")
_FACTOR = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SECONDS_PER_UNIT = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Seconds per unit of a duration. A duration without a unit is in seconds."""
MAX_BYTES = 1 << 62
PAGE_BYTES = 4096
_ALLOWED = "a whole number, optionally followed by K, M, G or T (powers of 1024; also Ki, KiB ...), e.g. 512M"


def parse_size_bytes(text: str) -> int:
    """Parse a size such as ``512M`` as bytes; ``512Mi`` and ``512MiB`` are the same size.

    Raises:
        ParseError: the text has blanks, a fraction or an unknown suffix, is empty, or means more than 2**62 bytes.
    """
    found = _SIZE.fullmatch(text) if text.isascii() else None
    if found is None:
        raise ParseError("a memory size", text, _ALLOWED)
    value = int(found[1]) * _FACTOR[found[2]]
    if value > MAX_BYTES:
        raise ParseError("a memory size", text, f"at most {MAX_BYTES} bytes")
    return value


def format_bytes(count: float) -> str:
    """A number of bytes as text for people, such as ``1.5 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def page_floor_bytes(count: int) -> int:
    """Round down to whole pages, as the kernel does with every memory limit."""
    return count - count % PAGE_BYTES
