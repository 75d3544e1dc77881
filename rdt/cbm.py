"""Capacity bit masks (CBM): the cache ways that a class of service may fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Cbm:
    """A set of cache ways; bit 0 is way 0. It may be empty or have holes (see ``contiguous``)."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits < 0:
            raise ValueError(f"a mask must not be negative: {self.bits:#x}")

    @classmethod
    def span(cls, first: int, ways: int) -> Self:
        """The mask of ``ways`` adjacent ways from way ``first`` upwards."""
        if first < 0 or ways < 0:
            raise ValueError(f"{ways} ways from way {first}: neither number may be negative")
        return cls(((1 << ways) - 1) << first)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse hexadecimal as resctrl writes it (``7ff``, ``0x7FF``); ValueError for other text."""
        try:
            return cls(int(text, 16))
        except ValueError:
            raise ValueError(f"{text!r} is not a hexadecimal mask") from None

    def text(self, width: int = 1) -> str:
        """Lower-case hexadecimal as resctrl shows it, zero-padded to the digits of a cache of ``width`` ways."""
        return f"{self.bits:0{(width + 3) // 4}x}"

    @property
    def ways(self) -> int:
        """Number of ways in the mask."""
        return self.bits.bit_count()

    @property
    def first(self) -> int:
        """The lowest way; ValueError for the empty mask."""
        if not self.bits:
            raise ValueError("the empty mask has no first way")
        return (self.bits & -self.bits).bit_length() - 1

    @property
    def last(self) -> int:
        """The highest way; ValueError for the empty mask."""
        if not self.bits:
            raise ValueError("the empty mask has no last way")
        return self.bits.bit_length() - 1

    @property
    def contiguous(self) -> bool:
        """True for a non-empty mask without holes, which the kernel demands where ``sparse_masks`` is 0."""
        lowest = self.bits & -self.bits
        return self.bits != 0 and (self.bits + lowest) & self.bits == 0

    def runs(self) -> tuple[Cbm, ...]:
        """The contiguous parts, lowest first."""
        found: list[Cbm] = []
        rest = self.bits
        while rest:
            lowest = rest & -rest
            run = rest & ~(rest + lowest)
            found.append(Cbm(run))
            rest &= ~run
        return tuple(found)

    def mirrored(self, width: int) -> Cbm:
        """The mask with the order of ways reversed, in a cache of ``width`` ways."""
        if self.bits >> width:
            raise ValueError(f"{self} does not fit in {width} ways")
        return Cbm(int(f"{self.bits:0{width}b}"[::-1], 2) if width else 0)

    def __or__(self, other: Cbm) -> Cbm:
        return Cbm(self.bits | other.bits)

    def __and__(self, other: Cbm) -> Cbm:
        return Cbm(self.bits & other.bits)

    def __sub__(self, other: Cbm) -> Cbm:
        return Cbm(self.bits & ~other.bits)

    def __le__(self, other: Cbm) -> bool:
        """True if ``other`` holds every way of this mask."""
        return self.bits & ~other.bits == 0

    def __lt__(self, other: Cbm) -> bool:
        """True if ``other`` holds every way of this mask and at least one more."""
        return self <= other and self != other

    def __contains__(self, way: int) -> bool:
        return way >= 0 and bool(self.bits >> way & 1)

    def __iter__(self) -> Iterator[int]:
        """The ways, lowest first."""
        rest = self.bits
        while rest:
            lowest = rest & -rest
            yield lowest.bit_length() - 1
            rest ^= lowest

    def __bool__(self) -> bool:
        return self.bits != 0

    def __str__(self) -> str:
        return f"{self.bits:x}"


NO_WAYS = Cbm(0)
