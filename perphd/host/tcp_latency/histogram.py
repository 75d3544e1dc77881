"""The log-linear histogram that the BPF programs fill: its buckets, and percentiles from it.

Times are counted in units of 1024 ns. Below 128 units every unit is a bucket. Above, every octave has 64
buckets, whose width is 0.8 to 1.6 % of their value. The last bucket ends at 137 s and also counts longer
times.

    steps  = number of halvings until t is below 128
    bucket = 64 x steps + (t >> steps)

``emit_bucket`` finds ``steps`` without a loop, by five comparisons with shifts of 16, 8, 4, 2 and 1.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from perphd.domain.reading import Reading, Unavailable
from perphd.host.bpf.assembler import Assembler, Register

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Histogram = npt.NDArray[np.uint32]

UNIT_SHIFT: Final = 10
"""One unit is 2**10 ns."""
SUB_BUCKETS: Final = 64
"""Number of buckets per octave."""
MAX_UNITS: Final = (1 << 27) - 1
_SUB_SHIFT: Final = 6
_STEPS: Final = (16, 8, 4, 2, 1)
BUCKETS: Final = SUB_BUCKETS * 20 + 2 * SUB_BUCKETS
"""Number of buckets: one for each of the first 128 units, and 64 in each of twenty octaves from 2**7 units on."""


def bucket_of(nanoseconds: int) -> int:
    """The bucket in which the programs count this time."""
    units = min(nanoseconds >> UNIT_SHIFT, MAX_UNITS)
    halvings = max(0, units.bit_length() - _SUB_SHIFT - 1)
    return SUB_BUCKETS * halvings + (units >> halvings)


def lower_bound_ns(bucket: int) -> int:
    """The shortest time, in ns, that falls into this bucket."""
    if bucket < 2 * SUB_BUCKETS:
        return bucket << UNIT_SHIFT
    halvings, rest = divmod(bucket - SUB_BUCKETS, SUB_BUCKETS)
    return (rest + SUB_BUCKETS) << halvings << UNIT_SHIFT


def emit_bucket(code: Assembler, result: Register, scratch: Register, labels: str) -> None:
    """Emit code that replaces ``result`` (ns) by its bucket's number. ``labels``: a unique prefix for labels."""
    code.arithmetic("rsh", result, UNIT_SHIFT)
    code.jump_if(result, "<=", MAX_UNITS, f"{labels}-in-range")
    code.move(result, MAX_UNITS)
    code.label(f"{labels}-in-range")
    code.move(scratch, 0)
    for step in _STEPS:
        # After this many halvings at least 64 units remain: the result stays in the upper half of 128.
        code.jump_if(result, "<", (2 * SUB_BUCKETS) << (step - 1), f"{labels}-{step}")
        code.arithmetic("rsh", result, step)
        code.arithmetic("add", scratch, step)
        code.label(f"{labels}-{step}")
    code.arithmetic("lsh", scratch, _SUB_SHIFT)
    code.arithmetic("add", result, scratch)


@cache
def _bounds_ms() -> npt.NDArray[np.float64]:
    import numpy as np  # slow to import

    return np.array([lower_bound_ns(bucket) for bucket in range(BUCKETS + 1)]) / 1e6


def percentile_ms(histogram: Histogram, share: float) -> Reading:
    """The time in ms within which this share of the requests was answered, interpolated; Unavailable if none was."""
    import numpy as np

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
