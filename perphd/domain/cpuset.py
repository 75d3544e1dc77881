"""Sets of logical CPUs in the kernel's list format (cpuset(7), "List format")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from perphd.domain.errors import ParseError

MAX_CPU = 8191
"""Largest accepted CPU number (the kernel's NR_CPUS limit is 8192 on x86_64)."""

_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_ALLOWED = f"numbers and ranges such as 0-3,8 with every CPU at most {MAX_CPU}"


@dataclass(frozen=True, slots=True)
class CpuSet:
    """An immutable set of logical CPU numbers, kept as a bit mask (bit n = CPU n)."""

    mask: int = 0

    def __post_init__(self) -> None:
        if self.mask < 0:
            raise ValueError("a CPU mask must not be negative")

    @classmethod
    def of(cls, cpus: Iterable[int]) -> CpuSet:
        """The set of these CPU numbers."""
        mask = 0
        for cpu in cpus:
            mask |= 1 << cpu
        return cls(mask)

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Parse the kernel's list format (``0-3,8``); an empty text is the empty set.

        Stricter than the kernel: no blanks inside, no empty parts, no strides. One trailing newline is
        allowed.

        Raises:
            ParseError: the text is anything else.
        """
        return cls(_mask_of(text))

    def __str__(self) -> str:
        parts: list[str] = []
        start = previous = -2
        for cpu in [*self, -2]:
            if cpu == previous + 1 and start >= 0:
                previous = cpu
                continue
            if start >= 0:
                parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = previous = cpu
        return ",".join(parts)

    def __iter__(self) -> Iterator[int]:
        mask, cpu = self.mask, 0
        while mask:
            zeros = (mask & -mask).bit_length() - 1
            cpu += zeros
            yield cpu
            mask >>= zeros + 1
            cpu += 1

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __bool__(self) -> bool:
        return self.mask != 0

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self.mask >> cpu & 1)

    def __and__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.mask & other.mask)

    def __or__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.mask | other.mask)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.mask & ~other.mask)

    def __le__(self, other: CpuSet) -> bool:
        return self.mask & ~other.mask == 0


@lru_cache(maxsize=512)
def _mask_of(text: str) -> int:
    """The mask of a CPU list (see ``CpuSet.parse``); cached, because the same few lists are parsed often."""
    body = text[:-1] if text.endswith("\n") else text
    mask = 0
    if body == "":
        return mask
    for part in body.split(","):
        found = _PART.fullmatch(part)
        if found is None or not part.isascii():
            raise ParseError("a CPU list", text, _ALLOWED)
        low = int(found[1])
        high = int(found[2]) if found[2] is not None else low
        if high < low or high > MAX_CPU:
            raise ParseError("a CPU list", text, _ALLOWED)
        mask |= ((1 << (high - low + 1)) - 1) << low
    return mask
