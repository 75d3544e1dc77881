"""What the programs have counted at one moment, and the difference of two moments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.host.tcp_latency.histogram import BUCKETS, Histogram

SHARDS: Final = 8
"""Copies of every count, by CPU modulo this: CPUs rarely wait for each other, and a read stays cheap."""
COUNTERS: Final = 8
"""Room for counters in a shard: one cache line."""


class Counter(IntEnum):
    """Position of each count in its shard.

    STARTED: requests whose first segment came in; ANSWERED: those whose first byte of an answer went out;
    DROPPED: those that ended without (reset, or closed by the server). SPLIT: answered ones that came in
    several segments. PUSHED: segments that went out while no request waited: the rest of an answer, or data
    that nobody asked for. REPEATED: segments that came in again, and keepalive probes.
    """

    STARTED = 0
    ANSWERED = 1
    DROPPED = 2
    SPLIT = 3
    PUSHED = 4
    REPEATED = 5


class Region(IntEnum):
    """The three histograms of a shard, in order.

    WHOLE: requests of one segment, whose first and last are the same; SPLIT_FIRST and SPLIT_LAST: the others,
    from their first and from their last segment on.
    """

    WHOLE = 0
    SPLIT_FIRST = 1
    SPLIT_LAST = 2


SHARD_BUCKETS: Final = len(Region) * BUCKETS


@dataclass(frozen=True, slots=True, eq=False)
class TcpCounts:
    """Ever-growing counts; they wrap at 2**32, which differences bear.

    ``regions``: one row a ``Region``.
    """

    counters: npt.NDArray[np.uint32]
    regions: npt.NDArray[np.uint32]

    @classmethod
    def from_memory(cls, counters: memoryview, histograms: memoryview) -> TcpCounts:
        """Add up the shards of the two maps."""
        by_shard = np.frombuffer(counters, np.uint64, SHARDS * COUNTERS).reshape(SHARDS, COUNTERS)
        buckets = np.frombuffer(histograms, np.uint64, SHARDS * SHARD_BUCKETS).reshape(
            SHARDS, len(Region), BUCKETS
        )
        return cls(by_shard.sum(axis=0).astype(np.uint32), buckets.sum(axis=0).astype(np.uint32))

    def since(self, earlier: TcpCounts) -> TcpCounts:
        """What was counted between the two."""
        return TcpCounts(self.counters - earlier.counters, self.regions - earlier.regions)

    def __getitem__(self, counter: Counter) -> int:
        return int(self.counters[counter])

    @property
    def waiting(self) -> int:
        """Requests that were neither answered nor dropped. Only of counts since the beginning."""
        return (self[Counter.STARTED] - self[Counter.ANSWERED] - self[Counter.DROPPED]) % 2**32

    @property
    def from_last(self) -> Histogram:
        """Latencies from the last segment of each request on."""
        found: Histogram = self.regions[Region.WHOLE] + self.regions[Region.SPLIT_LAST]
        return found

    @property
    def from_first(self) -> Histogram:
        """Latencies from the first segment of each request on."""
        found: Histogram = self.regions[Region.WHOLE] + self.regions[Region.SPLIT_FIRST]
        return found
