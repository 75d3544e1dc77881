"""Bandwidth levels that a CPU family lacks, for machines that nobody has calibrated. Every entry has a source.

No bytes per second are shipped: they depend on the memory that is installed. A level that the hardware lacks acts like
the next higher one that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rdt.access import decoded
from rdt.frozen import FrozenDict
from rdt.fs import Fs


@dataclass(frozen=True, slots=True)
class Family:
    """Processors of one family, model and steppings (CPUID), and the levels that act like another one."""

    name: str
    vendor: str
    family: int
    model: int
    steppings: tuple[int, ...]
    acts_like: FrozenDict[int, int]
    source: str

    def levels(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Those of these levels that the hardware has."""
        return tuple(level for level in steps if level not in self.acts_like)


FAMILIES: Final = (
    Family(
        "Intel Xeon Scalable, first generation (Skylake-SP)",
        "GenuineIntel",
        6,
        85,
        (4,),
        FrozenDict({70: 90, 80: 90}),
        "github.com/intel/intel-cmt-cat/issues/69: read back on Xeon Gold 6150, Gold 6126 and Silver 4114",
    ),
)


def family_of(fs: Fs) -> Family | None:
    """What is known of this machine's processors, by /proc/cpuinfo; None where nothing is."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in decoded(fs.read("/proc/cpuinfo")).splitlines():
            name, colon, value = line.partition(":")
            if not colon and found:
                break  # the first processor speaks for all
            found.setdefault(name.strip(), value.strip())
    for each in FAMILIES:
        here = [found.get(name) for name in ("vendor_id", "cpu family", "model")]
        same = here == [each.vendor, str(each.family), str(each.model)]
        if same and found.get("stepping") in [str(stepping) for stepping in each.steppings]:
            return each
    return None
