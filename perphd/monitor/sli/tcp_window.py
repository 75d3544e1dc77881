"""Indicators from the BPF programs' counts: a rate, latency percentiles, and signs that the latency misleads."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.host.tcp_latency import LatencyCounter, TcpCounts, percentile_ms
from perphd.monitor.rates import FIRST_READING, NO_TIME_PASSED
from perphd.monitor.sli.reading import NOTHING_BEHIND, SampleSize, SliReading
from perphd.monitor.sli.resolution import EXACT, LONGEST_S, least_requests

SPACING_S: Final = 0.8
"""Minimum spacing of kept counts in seconds, to bound memory; the newest is always kept."""
NEEDED: Final = {0.50: least_requests("p50"), 0.95: least_requests("p95"), 0.99: least_requests("p99")}
"""Number of requests that each percentile needs, collected over at most ``LONGEST_S``."""

_JUDGED: Final = 100
"""Minimum number of requests in a window from which warning signs are judged."""
_PUSHED_SHARE: Final = 1.0
_SPLIT_SHARE: Final = 0.2
_APART: Final = 1.5
_CALMER: Final = 0.5
"""Share of its threshold below which a warning sign is cleared."""

PUSHED_SIGN: Final = (
    "more segments go out than requests come in (long or streamed answers, or pushed messages): the latency is "
    "that of first bytes"
)
APART_SIGN: Final = (
    "requests come in several segments, and latencies from their first and last segments are far apart (uploads, "
    'messages without an answer, or pipelining): with from = "last" pipelined requests look faster than they are, with '
    'from = "first" the client\'s own time counts'
)


class TcpWindow:
    """The recent counts of the BPF programs, as far back as the percentiles need them."""

    def __init__(self, from_first: bool) -> None:
        self._from_first = from_first
        self._kept: deque[tuple[float, TcpCounts]] = deque()
        self._signs: dict[str, bool] = {PUSHED_SIGN: False, APART_SIGN: False}

    @property
    def signs(self) -> tuple[str, ...]:
        """Present warnings about the latency."""
        return tuple(text for text, holds in self._signs.items() if holds)

    def update(self, counts: TcpCounts, at_s: float) -> SliReading:
        """The indicators since the last call; percentiles reach back further if necessary."""
        if not self._kept:
            self._kept.append((at_s, counts))
            return SliReading.missing(FIRST_READING)
        before_s, before = self._kept[-1]
        if at_s <= before_s:
            return SliReading.missing(NO_TIME_PASSED)
        while len(self._kept) > 1 and self._is_enough_without_the_oldest(counts, at_s):
            self._kept.popleft()
        latest = counts.since(before)
        found = [self._percentile(counts, at_s, share) for share in NEEDED]
        p50_ms, p95_ms, p99_ms = (latency for latency, _ in found)
        p50, p95, p99 = (made for _, made in found)
        if latest[LatencyCounter.ANSWERED] == 0 and before.waiting > 0 and counts.waiting > 0:
            stalled = Unavailable("requests wait, and none was answered in this interval")
            p50_ms = p95_ms = p99_ms = stalled
        self._judge(counts.since(self._kept[0][1]))
        self._keep(counts, at_s)
        events = latest[LatencyCounter.ANSWERED]
        made = SampleSize(float(events), at_s - before_s)
        reading = SliReading(events / (at_s - before_s), NOT_MEASURED, p50_ms, p95_ms, p99_ms)
        return replace(reading, work=made, p50=p50, p95=p95, p99=p99, resolution_s=EXACT.reading)

    def _is_enough_without_the_oldest(self, counts: TcpCounts, at_s: float) -> bool:
        next_s, following = self._kept[1]
        return next_s <= at_s - LONGEST_S or counts.since(following)[LatencyCounter.ANSWERED] >= max(
            NEEDED.values()
        )

    def _percentile(self, counts: TcpCounts, at_s: float, share: float) -> tuple[Reading, SampleSize]:
        """A percentile over the shortest time up to now with enough requests."""
        for began_s, earlier in reversed(self._kept):
            window = counts.since(earlier)
            if window[LatencyCounter.ANSWERED] >= NEEDED[share]:
                latency = percentile_ms(window.from_first if self._from_first else window.from_last, share)
                return latency, SampleSize(float(window[LatencyCounter.ANSWERED]), at_s - began_s)
        return Unavailable(f"fewer than {NEEDED[share]:.0f} requests in {LONGEST_S:g} s"), NOTHING_BEHIND

    def _keep(self, counts: TcpCounts, at_s: float) -> None:
        # If the last two kept counts are too close to each other, the present counts replace the last ones.
        if len(self._kept) >= 2 and self._kept[-1][0] - self._kept[-2][0] < SPACING_S:
            self._kept.pop()
        self._kept.append((at_s, counts))

    def _judge(self, window: TcpCounts) -> None:
        answered = window[LatencyCounter.ANSWERED]
        if answered < _JUDGED:
            return
        self._set(PUSHED_SIGN, window[LatencyCounter.PUSHED] / answered, _PUSHED_SHARE)
        first, last = percentile_ms(window.from_first, 0.95), percentile_ms(window.from_last, 0.95)
        apart = available(first) and available(last) and first > _APART * last
        self._set(APART_SIGN, window[LatencyCounter.SPLIT] / answered if apart else 0.0, _SPLIT_SHARE)

    def _set(self, sign: str, measure: float, limit: float) -> None:
        self._signs[sign] = measure > (limit * _CALMER if self._signs[sign] else limit)
