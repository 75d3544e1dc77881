"""Indicators from a Prometheus text endpoint of the application."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from perphd.domain.masking import masked
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.rates import FIRST_READING, WENT_BACKWARDS, Rate
from perphd.monitor.sli.options import METRIC_SELECTOR, seconds, setting
from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.reading import SliReading

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
        """Read ``name`` or ``name{label="value",...}``.

        Raises:
            SliError: anything else.
        """
        found = METRIC_SELECTOR.fullmatch(text)
        if found is None:
            raise SliError(f"{text!r} is no metric with labels")
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

        The parser gives every counter the ending ``_total``, also one that is exposed without.
        """
        return name in (self.name, f"{self.name}_total") and all(
            labels.get(key) == value for key, value in self.labels
        )

    def __str__(self) -> str:
        inside = ",".join(f'{key}="{value}"' for key, value in self.labels)
        return f"{self.name}{{{inside}}}" if inside else self.name


@dataclass(frozen=True, slots=True)
class Series:
    """One value of an exposition. ``counts``: it only ever grows (a counter, or part of a histogram or summary)."""

    name: str
    labels: Mapping[str, str]
    value: float
    counts: bool


def parse_series(text: str, names: Iterable[str]) -> list[Series]:
    """The series of the text whose names begin with one of ``names``. Raises ValueError for malformed ones."""
    from prometheus_client.parser import text_string_to_metric_families

    # An application may expose thousands of series: the full parser sees only the lines that matter.
    bases = {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in names} | set(names)
    prefixes = tuple(prefix for base in bases for prefix in (base, f"# TYPE {base}"))
    lines = [line for line in text.splitlines() if line.startswith(prefixes)]
    found: list[Series] = []
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            counts = family.type in _COUNTER_TYPES and "quantile" not in sample.labels
            counts = counts or (family.type == "unknown" and sample.name.endswith("_total"))
            found.append(Series(sample.name, sample.labels, float(sample.value), counts))
    return found


class PrometheusSource(PolledSource):
    """Scrapes the endpoint once per reading, over one kept-alive connection."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("prometheus", seconds(spec, "timeout_s"))
        self._url = setting(spec, "url")
        self._shown = masked(self._url)
        self._kind = setting(spec, "kind")
        self._to_ms = 1000.0 if setting(spec, "latency_unit") == "s" else 1.0
        keys = ("work", "load", *_PERCENTILES, "latency_histogram")
        self._selectors = {key: Selector.parse(spec.get(key)) for key in keys if spec.get(key)}
        histogram = self._selectors.get("latency_histogram")
        self._buckets = None if histogram is None else Selector(f"{histogram.name}_bucket", histogram.labels)
        self._names = {selector.name for selector in self._selectors.values()}
        self._rates = {key: Rate() for key in ("work", "load")}
        self._growth = HistogramGrowth()
        self._session: aiohttp.ClientSession | None = None

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"Accept": "text/plain; version=0.0.4"})
        async with self._session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise SliError(f"{self._shown} answers with status {response.status}")
            body = b""
            async for chunk in response.content.iter_chunked(65536):
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise SliError(f"{self._shown} answers with more than {MAX_BODY_BYTES >> 20} MiB")
        at_s = answered_at()
        try:
            series = parse_series(body.decode(errors="replace"), self._names)
        except ValueError as exc:
            raise SliError(f"{self._shown} is not in the Prometheus text format: {exc}") from exc
        return self._reading(series, at_s)

    def _reading(self, series: Sequence[Series], at_s: float) -> SliReading:
        out: dict[str, Reading] = {
            "work_rate_per_s": self._flow("work", series, at_s),
            "load_per_s": self._flow("load", series, at_s),
        }
        histogram = self._percentiles(series)
        for key, share in zip(_PERCENTILES, (0.50, 0.95, 0.99), strict=True):
            selector = self._selectors.get(key)
            if selector is not None:
                values = [s.value for s in series if selector.matches(s.name, s.labels)]
                out[f"{key}_ms"] = self._largest(values, selector)
            elif isinstance(histogram, Unavailable):
                out[f"{key}_ms"] = histogram
            else:
                out[f"{key}_ms"] = quantile(histogram, share) * self._to_ms
        return SliReading(**out)

    def _flow(self, key: str, series: Sequence[Series], at_s: float) -> Reading:
        selector = self._selectors.get(key)
        if selector is None:
            return NOT_MEASURED
        found = [s for s in series if selector.matches(s.name, s.labels)]
        total = sum(s.value for s in found)
        if not found or not math.isfinite(total):
            return Unavailable(f"{self._shown} has no number for {selector}")
        grows = found[0].counts if self._kind == "auto" else self._kind == "counter"
        return self._rates[key].update(total, at_s) if grows else total

    def _largest(self, values: Sequence[float], selector: Selector) -> Reading:
        # A summary without observations in its window says NaN.
        numbers = [value for value in values if math.isfinite(value)]
        if not numbers:
            return Unavailable(f"{self._shown} has no number for {selector}")
        return max(numbers) * self._to_ms

    def _percentiles(self, series: Sequence[Series]) -> list[tuple[float, float]] | Unavailable:
        if self._buckets is None:
            return NOT_MEASURED
        totals: dict[float, float] = {}
        for s in series:
            if self._buckets.matches(s.name, s.labels) and "le" in s.labels:
                bound = float(s.labels["le"])
                totals[bound] = totals.get(bound, 0.0) + s.value
        if not totals:
            return Unavailable(f"{self._shown} has no {self._buckets}")
        return self._growth.update(totals)

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class HistogramGrowth:
    """What a cumulative histogram gained between two readings."""

    def __init__(self) -> None:
        self._before: dict[float, float] | None = None

    def update(self, totals: dict[float, float]) -> list[tuple[float, float]] | Unavailable:
        """(upper bound, observations up to it in the interval), ascending; Unavailable without any."""
        before, self._before = self._before, totals
        if before is None:
            return FIRST_READING
        if before.keys() != totals.keys() or any(totals[bound] < before[bound] for bound in totals):
            return WENT_BACKWARDS
        grown = [(bound, totals[bound] - before[bound]) for bound in sorted(totals)]
        return grown if grown[-1][1] > 0 else Unavailable("no request was completed in this interval")


def quantile(grown: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` of the observations lie, interpolated within its bucket.

    In the bucket without an upper bound nothing is known: its lower bound is given.
    """
    rank = share * grown[-1][1]
    for (lower, below), (upper, upto) in pairwise([(0.0, 0.0), *grown]):
        if upto >= rank:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (rank - below) / (upto - below) if upto > below else upper
    return grown[-1][0]
