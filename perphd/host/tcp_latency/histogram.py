"""The log-linear histogram that the programs fill: its buckets, and percentiles from it.

Times are counted in units of 1024 ns. Below 128 units every unit is a bucket; above, every octave has 64 buckets,
which are 0.8 to 1.6 % of their value wide. The last bucket ends at 137 s and holds everything longer.

    steps  = how often t must be halved to be below 128
    bucket = 64 x steps + (t >> steps)

``emit_bucket`` finds ``steps`` without a loop, by five comparisons with shifts of 16, 8, 4, 2 and 1.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.domain.reading import Reading, Unavailable
from perphd.host.bpf.assembler import Assembler, Register

UNIT_SHIFT: Final = 10
"""One unit is 2**10 ns."""
SUB_BUCKETS: Final = 64
"""Buckets of an octave."""
MAX_UNITS: Final = (1 << 27) - 1
_SUB_SHIFT: Final = 6
_STEPS: Final = (16, 8, 4, 2, 1)
BUCKETS: Final = SUB_BUCKETS * 20 + 2 * SUB_BUCKETS
"""Twenty octaves above the first 128 units: those that begin at 2**7 ... 2**26."""

Histogram = npt.NDArray[np.uint32]


def bucket_of(nanoseconds: int) -> int:
    """The bucket in which the programs count this time."""
    units = min(nanoseconds >> UNIT_SHIFT, MAX_UNITS)
    halvings = max(0, units.bit_length() - _SUB_SHIFT - 1)
    return SUB_BUCKETS * halvings + (units >> halvings)


def lower_bound_ns(bucket: int) -> int:
    """The least time that falls into this bucket."""
    if bucket < 2 * SUB_BUCKETS:
        return bucket << UNIT_SHIFT
    halvings, rest = divmod(bucket - SUB_BUCKETS, SUB_BUCKETS)
    return (rest + SUB_BUCKETS) << halvings << UNIT_SHIFT


def emit_bucket(code: Assembler, result: Register, scratch: Register, labels: str) -> None:
    """``result`` (ns) becomes the number of its bucket. ``labels``: a prefix that nobody else uses."""
    code.arithmetic("rsh", result, UNIT_SHIFT)
    code.jump_if(result, "<=", MAX_UNITS, f"{labels}-in-range")
    code.move(result, MAX_UNITS)
    code.label(f"{labels}-in-range")
    code.move(scratch, 0)
    for step in _STEPS:
        # Halving so often leaves at least 64 units: the result stays in the upper half of 128.
        code.jump_if(result, "<", (2 * SUB_BUCKETS) << (step - 1), f"{labels}-{step}")
        code.arithmetic("rsh", result, step)
        code.arithmetic("add", scratch, step)
        code.label(f"{labels}-{step}")
    code.arithmetic("lsh", scratch, _SUB_SHIFT)
    code.arithmetic("add", result, scratch)


@cache
def _bounds_ms() -> npt.NDArray[np.float64]:
    return np.array([lower_bound_ns(bucket) for bucket in range(BUCKETS + 1)]) / 1e6


def percentile_ms(histogram: Histogram, share: float) -> Reading:
    """The time below which this share of the requests lies, interpolated within its bucket."""
    upto = np.cumsum(histogram, dtype=np.uint64)
    total = int(upto[-1])
    if total == 0:
        return Unavailable("no request was answered")
    rank = share * total
    bucket = int(np.searchsorted(upto, rank))
    inside = int(histogram[bucket])
    below = int(upto[bucket]) - inside
    low, high = _bounds_ms()[bucket : bucket + 2]
    return float(low + (high - low) * (rank - below) / inside)
