"""Counts of the BPF programs at one moment, and differences between two moments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from perphd.host.tcp_latency.histogram import BUCKETS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from perphd.host.tcp_latency.histogram import Histogram

SHARDS: Final = 8
"""Copies of every count, selected by CPU modulo this number: little contention, and reading stays cheap."""
COUNTERS: Final = 8
"""Number of counters in a shard: one cache line."""


class LatencyCounter(IntEnum):
    """Position of each count in its shard.

    - STARTED: requests whose first segment arrived.
    - ANSWERED: requests whose answer's first byte was sent.
    - DROPPED: requests that ended without an answer (reset, or closed by the server).
    - SPLIT: answered requests that arrived in several segments.
    - PUSHED: segments sent while no request waited: the rest of an answer, or unrequested data.
    - REPEATED: retransmitted incoming segments, and keepalive probes.
    """

    STARTED = 0
    ANSWERED = 1
    DROPPED = 2
    SPLIT = 3
    PUSHED = 4
    REPEATED = 5


class Region(IntEnum):
    """The three histograms of a shard, in order.

    WHOLE: requests of one segment. SPLIT_FIRST, SPLIT_LAST: requests of several segments, timed from their
    first and from their last segment.
    """

    WHOLE = 0
    SPLIT_FIRST = 1
    SPLIT_LAST = 2


SHARD_BUCKETS: Final = len(Region) * BUCKETS


@dataclass(frozen=True, slots=True, eq=False)
class TcpCounts:
    """Cumulative counts; they wrap at 2**32, which differences tolerate.

    ``regions``: one row per ``Region``.
    """

    counters: npt.NDArray[np.uint32]
    regions: npt.NDArray[np.uint32]

    @classmethod
    def from_memory(cls, counters: memoryview, histograms: memoryview) -> TcpCounts:
        """Add up the shards of the two maps."""
        import numpy as np  # not needed to test whether the programs load

        by_shard = np.frombuffer(counters, np.uint64, SHARDS * COUNTERS).reshape(SHARDS, COUNTERS)
        buckets = np.frombuffer(histograms, np.uint64, SHARDS * SHARD_BUCKETS).reshape(
            SHARDS, len(Region), BUCKETS
        )
        return cls(by_shard.sum(axis=0).astype(np.uint32), buckets.sum(axis=0).astype(np.uint32))

    def since(self, earlier: TcpCounts) -> TcpCounts:
        """The counts between the two moments."""
        return TcpCounts(self.counters - earlier.counters, self.regions - earlier.regions)

    def __getitem__(self, counter: LatencyCounter) -> int:
        return int(self.counters[counter])

    @property
    def waiting(self) -> int:
        """Requests neither answered nor dropped. Only valid for counts since the beginning."""
        return (
            self[LatencyCounter.STARTED] - self[LatencyCounter.ANSWERED] - self[LatencyCounter.DROPPED]
        ) % 2**32

    @property
    def from_last(self) -> Histogram:
        """Latencies measured from each request's last segment."""
        found: Histogram = self.regions[Region.WHOLE] + self.regions[Region.SPLIT_LAST]
        return found

    @property
    def from_first(self) -> Histogram:
        """Latencies measured from each request's first segment."""
        found: Histogram = self.regions[Region.WHOLE] + self.regions[Region.SPLIT_FIRST]
        return found
