"""Scores of the ladder's models for other hosts, and a prior from other hosts' scores for a series' first
hour. Pure.

Problem. In a series' first hour, the ladder's models have too few scores to distinguish them, because most of
the loss of a 99 % bound comes from few misses. Other hosts may have scored the same models on the same
application for days.

Approach. One host's scores of model m on one series are the number n of scores, the mean pinball loss l and the share
of values above the bound, q. Losses are comparable after division by the series' scale s, the mean absolute difference
of successive values:

    value  log(l / s)      evidence  n           value  q      evidence  n

``pooling`` combines the values of many hosts into one of each per model, which no minority of hosts can distort.
Models that cover too little on the other hosts are left out. The rest is the prior: model -> pooled l / s. Until the
series has ``LEAST_WINDOWS`` values, the prior counts like ``ladder.PRIOR_SCORES`` scores beside the series' own scores.
From then on, only the series' own scores count.

Workloads that were found for one declaration are one application. If this host has several of them, the one with the
most values contributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from perphd.federated.contribution import Statistic, Topic
from perphd.federated.ledger import ContributionLedger
from perphd.federated.pooling import QUORUM, Asking, Pooled, pool
from perphd.forecast.following import Followed, change_scale
from perphd.forecast.ladder import GREATEST_MISSES, MODELS, WINDOW

KIND: Final = "forecast"
LOSS, MISSES = "loss", "misses"
NAMES: Final = tuple(model.name for model in MODELS)
POINTS: Final = f"ladder 1 of {', '.join(NAMES)}"
"""Version of the models and scores; scores of other versions are not comparable."""
LEAST_SCORES: Final = 100
"""Minimum number of scores that a model needs to contribute: the window of the coverage check."""
MOST_SERIES: Final = 128
"""Maximum number of series that a host reports: those with the most values."""
_LEAST_LOSS: Final = 1e-6
"""Minimum loss over scale, for a series that never changes."""
_MOST_LOSS: Final = 1e6

Key = tuple[str, str]
"""Workload or application, and series."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Pooled losses of other hosts on one series: model -> loss relative to the scale; empty if too few know it.

    ``hosts``: the hosts that counted. ``told``: the pooled losses, with facts about the hosts.
    """

    losses: Mapping[str, float]
    hosts: tuple[str, ...]
    told: Pooled = field(compare=False)

    @property
    def ranked(self) -> tuple[str, ...]:
        """The models by their loss, the lowest first."""
        return tuple(sorted(self.losses, key=lambda name: self.losses[name]))


def contributed(
    series: Mapping[Key, Followed], applications: Mapping[str, str] = MappingProxyType({})
) -> tuple[Statistic, ...]:
    """This host's scores of the models on these series, as statistics for others.

    ``applications``: workload -> its name on other hosts, where the names differ.
    """
    found: list[Statistic] = []
    spoken: set[Key] = set()
    for workload, name_of_series in sorted(series, key=lambda key: (-series[key].ladder.seen, key)):
        key = workload, name_of_series
        known_as = applications.get(workload, workload), name_of_series
        if known_as in spoken:
            continue
        if len(spoken) == MOST_SERIES:
            break
        tracks = series[key].ladder.tracks
        scored = [0 if name not in tracks else len(tracks[name].losses) for name in NAMES]
        evidence = tuple(float(n) if n >= LEAST_SCORES else 0.0 for n in scored)
        if not any(evidence):
            continue
        spoken.add(known_as)
        scale = change_scale(series[key].ladder.values)
        loss, misses = [], []
        for name, n in zip(NAMES, evidence, strict=True):
            track = tracks[name] if n else None
            relative = track.loss / scale if track is not None and scale > 0 else _LEAST_LOSS
            loss.append(_rounded(math.log(min(max(relative, _LEAST_LOSS), _MOST_LOSS)) if n else 0.0))
            misses.append(_rounded(track.missed.bit_count() / n if track is not None else 0.0))
        for aspect, values in ((LOSS, loss), (MISSES, misses)):
            found.append(Statistic(topic_of(known_as, aspect), tuple(values), evidence))
    return tuple(found)


def prior(ledger: ContributionLedger, key: Key, asking: Asking) -> Prior:
    """The prior for this series of an application, for the host that asks."""
    loss, misses = (pool(ledger, topic_of(key, aspect), len(NAMES), asking) for aspect in (LOSS, MISSES))
    losses = {
        name: math.exp(float(loss.value[i]))
        for i, name in enumerate(NAMES)
        if min(loss.hosts[i], misses.hosts[i]) >= QUORUM and misses.value[i] <= GREATEST_MISSES / WINDOW
    }
    return Prior(losses, tuple(each.contributor for each in loss.sources), loss)


def topic_of(key: Key, aspect: str) -> Topic:
    """The topic of one kind of scores on one series."""
    application, series = key
    return Topic(KIND, application, f"{series} {aspect}", POINTS)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
