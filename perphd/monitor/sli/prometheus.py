"""Indicators from a Prometheus text endpoint of the application."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from perphd.domain.masking import masked
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.workload import SliSpec
from perphd.host.tls import verified
from perphd.monitor.rates import WENT_BACKWARDS
from perphd.monitor.sli.options import METRIC_SELECTOR, resolution_of, seconds, setting
from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.reading import SliReading, behind
from perphd.monitor.sli.resolution import EXACT, Counted, CountWindow, Resolution, least_requests

if TYPE_CHECKING:
    import aiohttp

MAX_BODY_BYTES: Final = 8 << 20
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_COUNTER_TYPES = frozenset({"counter", "histogram", "summary"})
_PERCENTILES = ("latency_p50", "latency_p95", "latency_p99")


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric name and the labels that a series must have."""

    name: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parse ``name`` or ``name{label="value",...}``.

        Raises:
            SliError: the text has another form.
        """
        found = METRIC_SELECTOR.fullmatch(text)
        if found is None:
            raise SliError(f"{text!r} is not a metric name with optional labels")
        labels: list[tuple[str, str]] = []
        rest = (found[2] or "").strip()
        while rest:
            label = _LABEL.match(rest)
            if label is None:
                raise SliError(f'{text!r}: labels are written name="value", separated by commas')
            labels.append((label[1], re.sub(r"\\(.)", r"\1", label[2])))
            rest = rest[label.end() :].strip()
        return cls(found[1], tuple(labels))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """True for a series of this name with at least these labels.

        The parser appends ``_total`` to every counter's name, so the name with this suffix matches as well.
        """
        return name in (self.name, f"{self.name}_total") and all(
            labels.get(key) == value for key, value in self.labels
        )

    def __str__(self) -> str:
        inside = ",".join(f'{key}="{value}"' for key, value in self.labels)
        return f"{self.name}{{{inside}}}" if inside else self.name


@dataclass(frozen=True, slots=True)
class WantedSeries:
    """One value of an exposition. ``counts``: it only grows (a counter, or part of a histogram or summary)."""

    name: str
    labels: Mapping[str, str]
    value: float
    counts: bool


def parse_series(text: str, names: Iterable[str]) -> list[WantedSeries]:
    """The series in the text whose names begin with one of ``names``. Raises ValueError if a series is malformed."""
    from prometheus_client.parser import text_string_to_metric_families

    # An application may expose thousands of series: only the needed lines go through the full parser.
    bases = {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in names} | set(names)
    prefixes = tuple(prefix for base in bases for prefix in (base, f"# TYPE {base}"))
    lines = [line for line in text.splitlines() if line.startswith(prefixes)]
    found: list[WantedSeries] = []
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            counts = family.type in _COUNTER_TYPES and "quantile" not in sample.labels
            counts = counts or (family.type == "unknown" and sample.name.endswith("_total"))
            found.append(WantedSeries(sample.name, sample.labels, float(sample.value), counts))
    return found


class PrometheusSource(PolledSource):
    """Scrapes the endpoint once per reading, over one kept-alive connection."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("prometheus", seconds(spec, "timeout_s"), resolution_of(spec))
        self._url = setting(spec, "url")
        self._shown = masked(self._url)
        self._kind = setting(spec, "kind")
        self._to_ms = 1000.0 if setting(spec, "latency_unit") == "s" else 1.0
        keys = ("work", "load", *_PERCENTILES, "latency_histogram")
        self._selectors = {key: Selector.parse(spec.get(key)) for key in keys if spec.get(key)}
        histogram = self._selectors.get("latency_histogram")
        self._buckets = None if histogram is None else Selector(f"{histogram.name}_bucket", histogram.labels)
        self._names = {selector.name for selector in self._selectors.values()}
        self._windows = {key: CountWindow() for key in ("work", "load")}
        self._growth = {name: HistogramGrowth(least_requests(name)) for name in ("p50", "p95", "p99")}
        self._found_in = ""
        self._session: aiohttp.ClientSession | None = None

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"Accept": "text/plain; version=0.0.4"})
        async with self._session.get(
            self._url, allow_redirects=False, **await verified(self._url)
        ) as response:
            if response.status != 200:
                raise SliError(f"{self._shown} responds with status {response.status}")
            body = b""
            async for chunk in response.content.iter_chunked(65536):
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise SliError(f"{self._shown} responds with more than {MAX_BODY_BYTES >> 20} MiB")
        at_s = answered_at()
        try:
            series = parse_series(body.decode(errors="replace"), self._names)
        except ValueError as exc:
            raise SliError(f"{self._shown} is not in the Prometheus text format: {exc}") from exc
        return self._reading(series, at_s)

    def _reading(self, series: Sequence[WantedSeries], at_s: float) -> SliReading:
        totals = self._totals(series)
        work = self._flow("work", series, at_s)
        load = self._flow("load", series, at_s)
        if isinstance(totals, dict):
            self._watch("latency_histogram", totals[max(totals)], at_s)
        out: dict[str, Any] = {}
        for key, (name, growth) in zip(_PERCENTILES, self._growth.items(), strict=True):
            selector = self._selectors.get(key)
            if selector is not None:
                values = [s.value for s in series if selector.matches(s.name, s.labels)]
                out[f"{key}_ms"] = self._largest(values, selector)
            elif isinstance(totals, Unavailable):
                out[f"{key}_ms"] = totals
            else:
                counted, grown = growth.update(totals, at_s, self.resolution)
                told = quantile(grown, int(name[1:]) / 100.0) * self._to_ms if grown else counted.rate
                out |= {f"{key}_ms": told, name: behind(counted)}
        resolution_s = self.resolution.reading if self._found_in else NOT_MEASURED
        return SliReading(work.rate, load.rate, work=behind(work), resolution_s=resolution_s, **out)

    def _watch(self, key: str, total: float, at_s: float) -> None:
        """Use the first available counter to find the resolution."""
        if self._found_in in ("", key):
            self._found_in = key
            self._finder.update(total, at_s)

    def _flow(self, key: str, series: Sequence[WantedSeries], at_s: float) -> Counted:
        selector = self._selectors.get(key)
        if selector is None:
            return Counted(NOT_MEASURED)
        found = [s for s in series if selector.matches(s.name, s.labels)]
        total = sum(s.value for s in found)
        if not found or not math.isfinite(total):
            return Counted(Unavailable(f"{self._shown} has no number for {selector}"))
        grows = found[0].counts if self._kind == "auto" else self._kind == "counter"
        if not grows:
            return Counted(total)
        self._watch(key, total, at_s)
        return self._windows[key].update(total, at_s, self.resolution)

    def _largest(self, values: Sequence[float], selector: Selector) -> Reading:
        # A summary without observations in its window reports NaN.
        numbers = [value for value in values if math.isfinite(value)]
        if not numbers:
            return Unavailable(f"{self._shown} has no number for {selector}")
        return max(numbers) * self._to_ms

    def _totals(self, series: Sequence[WantedSeries]) -> dict[float, float] | Unavailable:
        """Number of observations up to each bound, since the application started."""
        if self._buckets is None:
            return NOT_MEASURED
        totals: dict[float, float] = {}
        for s in series:
            if self._buckets.matches(s.name, s.labels) and "le" in s.labels:
                bound = float(s.labels["le"])
                totals[bound] = totals.get(bound, 0.0) + s.value
        if not totals:
            return Unavailable(f"{self._shown} has no {self._buckets}")
        return totals

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class HistogramGrowth:
    """The growth of a cumulative histogram over windows that contain at least ``least`` observations."""

    def __init__(self, least: float = 0.0) -> None:
        self._least = least
        self._before: dict[float, float] | None = None
        self._window = CountWindow()

    def update(
        self, totals: dict[float, float], at_s: float, resolution: Resolution = EXACT
    ) -> tuple[Counted, list[tuple[float, float]]]:
        """The window's count, and its observations as ascending pairs (upper bound, cumulative count).

        The list is empty if ``Counted`` is Unavailable.
        """
        before = self._before
        if before is None or before.keys() != totals.keys() or any(totals[b] < before[b] for b in totals):
            self._before, self._window = totals, CountWindow()
            counted = self._window.update(totals[max(totals)], at_s, resolution)
            return (counted if before is None else Counted(WENT_BACKWARDS)), []
        counted = self._window.update(totals[max(totals)], at_s, resolution, self._least)
        if self._window.began_s == at_s:  # a window has ended here, with enough observations or not
            self._before = totals
        if not available(counted.rate):
            return counted, []
        grown = [(bound, totals[bound] - before[bound]) for bound in sorted(totals)]
        if grown[-1][1] <= 0:
            return Counted(Unavailable("no request was completed in this interval")), []
        return counted, grown


def quantile(grown: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` of the observations lie, interpolated within its bucket.

    For the bucket without an upper bound, its lower bound is returned.
    """
    rank = share * grown[-1][1]
    for (lower, below), (upper, upto) in pairwise([(0.0, 0.0), *grown]):
        if upto >= rank:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (rank - below) / (upto - below) if upto > below else upper
    return grown[-1][0]
