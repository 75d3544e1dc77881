"""Numbers and CPU masks as the kernel parses and prints them (kstrtox, bitmap_parse, %*pb)."""

from __future__ import annotations

import errno
import re
from typing import Final

from perphd.sim.kernel.vfs import refuse

BLANKS: Final = " \t\n\v\f\r"
"""Characters removed by the kernel's strim."""
_DIGITS: Final = {
    8: re.compile(r"\+?[0-7]+"),
    10: re.compile(r"\+?[0-9]+", re.ASCII),
    16: re.compile(r"\+?(?:0[xX])?[0-9a-fA-F]+"),
}
_CHUNK_BITS: Final = 32


def text_of(data: bytes) -> str:
    """The written text, up to the first NUL."""
    return data.split(b"\0")[0].decode(errors="replace")


def unsigned(text: str, base: int, bits: int = 64) -> int | None:
    """Parse like kstrtoul and its variants, without blanks; None for other text or a number that exceeds
    ``bits``.

    A leading plus is accepted, and in base 16 a leading 0x; a minus is not.
    """
    if _DIGITS[base].fullmatch(text) is None:
        return None
    value = int(text, base)
    return value if value < 1 << bits else None


def signed_int(text: str) -> int | None:
    """Parse like kstrtoint, base 0 (0x is hexadecimal, a leading 0 octal); None for anything else or beyond
    32 bits.
    """
    negative = text.startswith("-")
    digits = text[1:] if negative or text.startswith("+") else text
    if digits[:1] in ("+", "-"):
        return None
    if digits[:2].lower() == "0x":
        value = unsigned(digits, 16)
    elif len(digits) > 1 and digits.startswith("0"):
        value = unsigned(digits, 8)
    else:
        value = unsigned(digits, 10)
    if value is None:
        return None
    value = -value if negative else value
    return value if -(1 << 31) <= value < 1 << 31 else None


def parse_cpu_mask(text: str, limit: int) -> int:
    """A mask in hexadecimal chunks of 32 bits; OSError: EINVAL for other text, EOVERFLOW beyond ``limit`` CPUs."""
    mask = 0
    for chunk in text.split("\n", maxsplit=1)[0].strip(BLANKS).split(","):
        digits = chunk.strip(BLANKS)
        if digits and re.fullmatch(r"[0-9a-fA-F]+", digits) is None:
            raise refuse(errno.EINVAL)
        if len(digits) > _CHUNK_BITS // 4:
            raise refuse(errno.EOVERFLOW)
        mask = mask << _CHUNK_BITS | int(digits or "0", 16)
    if mask >> limit:
        raise refuse(errno.EOVERFLOW)
    return mask


def format_cpu_mask(mask: int, limit: int) -> str:
    """A mask as ``cpus`` prints it: chunks of 32 bits, zero-padded to the width of ``limit`` CPUs."""
    chunks: list[str] = []
    for low in range(0, max(limit, 1), _CHUNK_BITS):
        bits = min(_CHUNK_BITS, max(limit, 1) - low)
        chunks.append(f"{mask >> low & ((1 << bits) - 1):0{(bits + 3) // 4}x}")
    return ",".join(reversed(chunks))
