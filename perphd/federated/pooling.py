"""Pools many hosts' estimates into one that no minority can move beyond the range of the others.

Problem. Estimates v_k of hosts k at one point, with evidence e_k and likeness l_k. Some are wrong, and some hosts lie
about their evidence as well.

Approach. First, hosts that are far from the others are left out. At each point, m is the median of the hosts that know
it, weighted by likeness, and s their median distance from m:

    far       |v_k - m| > FAR max(1.4826 s, ALIKE)
    left out  host k, if more than half of its points are far

A host that is left out has no influence at all, so gross errors cost no accuracy. Evidence plays no part in this step,
since a host can claim any evidence. Whole hosts are left out, not single points, so the order of values at different
points stays.

Then weights w_k = l_k min(e_k, median of all e > 0), clipped to the third largest. Sorted by value, the weights fill
[0, 1]; the mean of the middle part [t, 1 - t] is the result:

    t = max(TRIM, greatest share of one host)

* One host can never move the result beyond the others' range: its weight lies within the part that is cut off.
* While lying hosts have at most the share ``TRIM`` of the weight, the result is within the range of the honest hosts.
* One tenth of the hosts, if they resemble the asking host as much as the others do, never have more than ``TRIM``,
  regardless of the evidence that they claim: at least half of the hosts that know a point count with the median
  evidence, and ``KNOWN_RATIO`` of all hosts know it.
* At least three hosts are needed; fewer give no result, since two cannot outvote one.
* Among points at which no host's weight differs, results keep the order of the values: quantiles stay sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.federated.contribution import Contribution, Statistic, Topic
from perphd.federated.hardware import Hardware, distance, likeness
from perphd.federated.ledger import ContributionLedger

Floats = NDArray[np.float64]

TRIM: Final = 0.25
"""Share of the weight that is cut off at each end."""
QUORUM: Final = 3
"""Minimum number of hosts that must know a point."""
FAR: Final = 3.0
"""Robust standard deviations from the median beyond which an estimate is far from the others."""
ALIKE: Final = 0.05
"""Minimum standard deviation for the test with ``FAR``: estimates of honest hosts with equal hardware differ by this
much (log units).
"""
LEAST_JUDGES: Final = 5
"""Minimum number of hosts that must know a point before one host's estimate of it can count as far from the others;
fewer hosts cannot tell which of them is wrong.
"""
FAR_AWAY: Final = "its estimates are far from those of the other hosts"
_NORMAL: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
KNOWN_RATIO: Final = 0.8
"""Minimum share of the accepted hosts with statistics about a topic that must know a point."""
OTHER_VERSION: Final = 0.5
"""Distance added for another version of the application."""
CLOCK_SLACK_S: Final = 3600.0
"""A document dated further than this in the future is ignored."""
BEHIND_OTHERS: Final = (
    "other hosts' models wait: most are dated in the future, so this host's clock must be behind"
)
EXPIRED_OTHERS: Final = (
    "other hosts' models wait: all have expired; check whether this host's clock is ahead, and whether the hosts "
    "still contribute"
)
_DAYS_FROM_S: Final = 2 * 86400.0
"""Distance into the future from which a message counts days instead of hours."""
_TINY: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Asking:
    """The host that asks. ``name``: its own documents do not count. ``expire_s``: age at which a document expires."""

    name: str
    hardware: Hardware
    now_unix_s: float
    expire_s: float


@dataclass(frozen=True, slots=True)
class CountedHost:
    """A host whose statistic counts. ``share``: its share of the weight of all points together."""

    contributor: str
    generation: int
    age_s: float
    distance: float
    version: str
    share: float


@dataclass(frozen=True, slots=True)
class LeftOutHost:
    """A host whose statistic does not count, with the reason."""

    contributor: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """The estimates at n points. Where ``hosts`` is below ``QUORUM``, value, spread and evidence are 0.

    ``value``, ``spread`` (half the width that contains two thirds of the weight), ``evidence`` (sum of the clipped
    weights), ``hosts``: each (n,).
    """

    value: Floats
    spread: Floats
    evidence: Floats
    hosts: NDArray[np.int64]
    sources: tuple[CountedHost, ...]
    left_out: tuple[LeftOutHost, ...] = ()


def pool(
    ledger: ContributionLedger,
    topic: Topic,
    count: int,
    asking: Asking,
    counted_by: str = "",
    version: str = "",
) -> Pooled:
    """Pooled estimates of the ledger's hosts about ``topic`` at its ``count`` points, for the asking host.

    Args:
        ledger: the contributions.
        topic: subject and points.
        count: number of points.
        asking: the asking host.
        counted_by: SLI source of the asking host's application; estimates from other sources are left out.
        version: version of that application.
    """
    rows: list[tuple[Contribution, Statistic, float]] = []
    left_out = []
    for each in ledger.counting():
        statistic = each.about(topic)
        if statistic is None:
            continue
        apart = distance(each.hardware, asking.hardware)
        if version and statistic.version and version != statistic.version:
            apart += OTHER_VERSION
        reason = _unfit(each, statistic, count, asking, counted_by, likeness(apart))
        if reason:
            left_out.append(LeftOutHost(each.contributor, reason))
        else:
            rows.append((each, statistic, apart))
    left_out += [LeftOutHost(n, "withdrawn") for n in _hidden(ledger, topic)]
    away = far_from_others(
        np.array([statistic.values for _, statistic, _ in rows]),
        np.array([statistic.evidence for _, statistic, _ in rows]),
        np.array([likeness(apart) for _, _, apart in rows]),
    )
    left_out += [
        LeftOutHost(each.contributor, FAR_AWAY)
        for (each, _, _), is_far in zip(rows, away, strict=True)
        if is_far
    ]
    rows = [row for row, is_far in zip(rows, away, strict=True) if not is_far]
    if not rows:
        nothing = np.zeros(count)
        return Pooled(nothing, nothing, nothing, np.zeros(count, dtype=np.int64), (), tuple(left_out))
    values = np.array([statistic.values for _, statistic, _ in rows])
    evidence = believed(np.array([statistic.evidence for _, statistic, _ in rows]))
    weights = evidence * np.array([[likeness(apart)] for _, _, apart in rows])
    value, spread, clipped = trimmed(values, weights)
    total = max(float(clipped.sum()), _TINY)
    sources = tuple(
        CountedHost(
            each.contributor,
            each.generation,
            max(0.0, asking.now_unix_s - each.made_unix_s),
            apart,
            statistic.version,
            float(clipped[row].sum()) / total,
        )
        for row, (each, statistic, apart) in enumerate(rows)
    )
    hosts = np.asarray((weights > 0).sum(axis=0), dtype=np.int64)
    return Pooled(value, spread, clipped.sum(axis=0), hosts, sources, tuple(left_out))


def far_from_others(values: Floats, evidence: Floats, alike: Floats) -> NDArray[np.bool_]:
    """True for each host (k,) that is left out. ``values``, ``evidence``: (k, n); ``alike``: likeness to the asking
    host (k,).
    """
    known = evidence > 0
    if len(values) < LEAST_JUDGES:
        return np.zeros(len(values), dtype=bool)
    weights = np.where(known, alike[:, None], 0.0)
    off = np.abs(values - _median(values, weights))
    scale = np.maximum(_NORMAL * _median(off, weights), ALIKE)
    judged = known & (known.sum(axis=0) >= LEAST_JUDGES)
    far = judged & (off > FAR * scale)
    return np.asarray(2 * far.sum(axis=1) > judged.sum(axis=1))


def believed(evidence: Floats) -> Floats:
    """The evidence (k, n) of k hosts that counts: at most the median at each point, 0 where too few hosts know it."""
    known = evidence > 0
    count = known.sum(axis=0)
    ordered = np.sort(evidence, axis=0)  # unknown first
    places = len(evidence) - count + np.stack([(count - 1) // 2, count // 2])
    median = np.take_along_axis(ordered, np.clip(places, 0, len(evidence) - 1), axis=0).mean(axis=0)
    enough = count >= KNOWN_RATIO * len(evidence)
    result: Floats = np.where(enough, np.minimum(evidence, median), 0.0)
    return result


def trimmed(values: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Trimmed weighted mean and spread of each column of ``values`` (k, n), and the weights that counted (k, n).

    Columns with fewer than ``QUORUM`` positive weights have mean, spread and weights 0.
    """
    hosts = values.shape[0]
    if hosts < QUORUM:
        none = np.zeros(values.shape[1])
        return none, none, np.zeros_like(weights)
    third = np.sort(weights, axis=0)[-QUORUM]
    clipped = np.minimum(weights, third)
    total = np.maximum(clipped.sum(axis=0), _TINY)
    order = np.argsort(values, axis=0, kind="stable")
    sorted_values = np.take_along_axis(values, order, axis=0)
    shares = np.take_along_axis(clipped, order, axis=0) / total
    above = np.cumsum(shares, axis=0)
    below = above - shares
    cut = np.minimum(np.maximum(TRIM, shares.max(axis=0)), 0.5 - _TINY)
    middle = np.maximum(np.minimum(above, 1.0 - cut) - np.maximum(below, cut), 0.0)
    known = third > 0
    kept = np.maximum(middle.sum(axis=0), _TINY)
    mean = np.where(known, (middle * sorted_values).sum(axis=0) / kept, 0.0)
    low, high = (_quantile(sorted_values, above, level) for level in (1 / 6, 5 / 6))
    return mean, np.where(known, (high - low) / 2, 0.0), clipped


def _median(values: Floats, weights: Floats) -> Floats:
    """The weighted median of each column."""
    order = np.argsort(values, axis=0, kind="stable")
    shares = np.take_along_axis(weights, order, axis=0)
    above = np.cumsum(shares, axis=0) / np.maximum(shares.sum(axis=0), _TINY)
    return _quantile(np.take_along_axis(values, order, axis=0), above, 0.5)


def _quantile(sorted_values: Floats, above: Floats, level: float) -> Floats:
    row = np.minimum((above < level).sum(axis=0), len(sorted_values) - 1)
    return np.asarray(np.take_along_axis(sorted_values, row[None], axis=0)[0], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Dating:
    """Result of comparing the dates of other hosts' documents with this host's clock.

    ``ahead``: hosts whose documents are dated in the future, each with the reason why its document does not count.
    ``why_wait``: why this host's own clock is in doubt, so that it must not judge by dates; empty if it is not.
    """

    ahead: Mapping[str, str]
    why_wait: str = ""


def dating(ledger: ContributionLedger, asking: Asking) -> Dating:
    """Judge clocks by the dates of the other hosts' documents.

    If most of them are dated in the future, this host's clock must be behind. If all others have expired, it may be
    ahead by more than their age.
    """
    others = [each for each in ledger.counting() if each.contributor != asking.name]
    found = {each.contributor: reason for each in others if (reason := _ahead(each, asking.now_unix_s))}
    current = [each for each in others if each.contributor not in found and not _is_expired(each, asking)]
    if 2 * len(found) > len(others):
        return Dating(found, BEHIND_OTHERS)
    return Dating(found, "" if current or not others else EXPIRED_OTHERS)


def _ahead(each: Contribution, now_unix_s: float) -> str:
    """Why a document is dated too far in the future; empty if it is not."""
    ahead_s = each.made_unix_s - now_unix_s
    if ahead_s <= CLOCK_SLACK_S:
        return ""
    far = f"{ahead_s / 86400.0:.0f} days" if ahead_s >= _DAYS_FROM_S else f"{ahead_s / 3600.0:.1f} hours"
    return f"dated {far} in the future: check the clock of {each.contributor}"


def _is_expired(each: Contribution, asking: Asking) -> bool:
    return asking.now_unix_s - each.made_unix_s > asking.expire_s


def _unfit(
    each: Contribution, statistic: Statistic, count: int, asking: Asking, counted_by: str, alike: float
) -> str:
    if each.contributor == asking.name:
        return "own"
    if ahead := _ahead(each, asking.now_unix_s):
        return ahead
    if _is_expired(each, asking):
        return "expired"
    if statistic.counted_by != counted_by:
        return f"its work is counted by {statistic.counted_by or 'no SLI'}"
    if len(statistic.values) != count:
        return f"{len(statistic.values)} points instead of {count}"
    return "" if alike > 0 else "unlike hardware"


def _hidden(ledger: ContributionLedger, topic: Topic) -> Sequence[str]:
    counting = {each.contributor for each in ledger.counting()}
    return [
        name
        for name, each in sorted(ledger.contributions.items())
        if name not in counting and each.about(topic) is not None
    ]
