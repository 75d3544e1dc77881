"""The result of a soak: trends of quantities that must stay flat after the warm-up, and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from perphd.predictor.files import KEPT_ASIDE, KEPT_GONE
from tools.soak import churn
from tools.soak.meter import Reading
from tools.soak.trend import BLOCKS, CONFIDENCE, Trend, trend

LIVES: Final = 9.0
"""Warm-up in mean lives of a workload. After it, about one in 8000 workloads has existed since the start, and the
memory kept for each (256 decisions, 1024 samples for rebuilds: full within a life at 10 Hz) has reached its final size.
The allocators have also reached their peak: measured RSS climbs towards it for this long while the number of blocks in
use stays constant. A leak shows in any later hour as well.
"""
FLAT: Final = ("open_fds", "rss_bytes", "blocks", "threads", "mean_file_bytes")
"""Quantities that must not grow, including CPU."""
_MIB: Final = 1 << 20
JOURNAL_BYTES: Final = 1.25 * _MIB
"""Limit of the journal, which is compacted above 1 MiB, or above twice its size after the last compaction if that is
more. The content for 100 workloads is 0.1 MiB, and one transaction about them adds up to 0.2 MiB.
"""
LOG_BYTES: Final = 10 * _MIB
"""SQLite's write-ahead log beside the store: 8 MiB plus pending writes."""
FILES_OF_ITS_OWN: Final = 12
"""Files of the state directory other than models: journal and copy, store and log, locks, files being written."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum of a quantity with a limit."""

    name: str
    most: float
    limit: float

    @property
    def holds(self) -> bool:
        """True if it stayed within its limit."""
        return self.most <= self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """Trends after the warm-up, and bounds over the whole time."""

    warm_up_s: float
    trends: tuple[Trend, ...]
    bounds: tuple[Bound, ...]

    @property
    def passed(self) -> bool:
        """True if nothing grows significantly, and nothing exceeds its limit."""
        return not any(one.grows() for one in self.trends) and all(bound.holds for bound in self.bounds)


def warm_up_s(places: int, per_s: float) -> float:
    """Time until all bounded memories are full."""
    return LIVES * churn.mean_life_s(places, per_s)


def most_files(lras: int) -> int:
    """Maximum number of files in the state directory without those put aside, for this many LRAs: two models per LRA,
    and one for each kept application that has gone.
    """
    return 2 * lras + KEPT_GONE + FILES_OF_ITS_OWN


def judge(readings: Sequence[Reading], skip_s: float, store_bytes: int, lras: int) -> Verdict:
    """The verdict on these readings. ``skip_s``: warm-up; ``store_bytes``: limit of the store; ``lras``: number of
    LRAs.

    Raises:
        ValueError: fewer than four readings after the warm-up.
    """
    kept = [item for item in readings if item.churned_s >= skip_s]
    at_s = [item.at_s for item in kept]
    shares = [
        100.0 * (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s) for before, after in pairwise(kept)
    ]
    bounds = (
        ("journal_bytes", JOURNAL_BYTES),
        ("store_bytes", store_bytes + LOG_BYTES),
        ("aside_files", KEPT_ASIDE),
        ("state_files", most_files(lras)),
    )
    return Verdict(
        skip_s,
        (
            trend("cpu_pct", at_s[1:], shares),
            *(trend(name, at_s, [getattr(item, name) for item in kept]) for name in FLAT),
        ),
        tuple(Bound(name, max(getattr(item, name) for item in readings), limit) for name, limit in bounds),
    )


def report(what: str, verdict: Verdict, workloads: int, rate_hz: float, seconds: float) -> str:
    """The tables for people."""
    lines = [
        f"# Soak ({what}): {workloads} workloads, {rate_hz:g} Hz, {seconds / 60.0:.0f} minutes: "
        f"{'passed' if verdict.passed else 'FAILED'}",
        "",
        f"The first {verdict.warm_up_s / 60.0:.1f} minutes, {LIVES:g} mean lives of a workload, do not count. Slopes "
        f"are lines through {BLOCKS} block means, with their {CONFIDENCE:.0%} confidence intervals, which allow for "
        "the likeness of neighbouring blocks.",
        "",
        "| what | first | last | most | slope per hour | 95 % interval | |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for one in verdict.trends:
        scale, unit = _unit(one.name)
        values = (one.first, one.last, one.most, one.per_h, one.low_per_h, one.high_per_h)
        first, last, most, slope, low, high = (f"{value / scale:.4g}" for value in values)
        said = "GROWS" if one.grows() else "flat" if one.low_per_h <= 0.0 <= one.high_per_h else "no leak"
        lines.append(f"| {unit} | {first} | {last} | {most} | {slope} | {low} to {high} | {said} |")
    lines += ["", "| what | most | limit | |", "| --- | ---: | ---: | --- |"]
    for bound in verdict.bounds:
        scale, unit = _unit(bound.name)
        said = "holds" if bound.holds else "EXCEEDED"
        lines.append(f"| {unit} | {bound.most / scale:.4g} | {bound.limit / scale:.4g} | {said} |")
    return "\n".join(lines) + "\n"


def _unit(name: str) -> tuple[float, str]:
    """The divisor and name of a quantity's unit."""
    if name.endswith("_bytes"):
        return _MIB, f"{name.removesuffix('_bytes')} MiB"
    return 1.0, f"{name.removesuffix('_pct')} %" if name.endswith("_pct") else name.replace("_", " ")
