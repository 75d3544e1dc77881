"""Hosts for the back-test of peak predictors: tenants with requests, and their usage at common instants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from perphd.forecast import backtest
from perphd.forecast.histogram import Floats
from perphd.forecast.peaks import PREDICTORS, HostUsage, Tenant
from perphd.forecast.usage_profile import PodSample, UsageProfile, observed
from tools.bench.forecasts.families import machines, public

DAY: Final = 288
"""Samples of five minutes in a day; on shorter traces, samples of a period."""
CHOICE: Final = "choice"


@dataclass(frozen=True, slots=True, eq=False)
class TracedHost:
    """``usage[t, i]`` of tenant i, which requested ``requests[i]``; ``period``: samples that predictors look back."""

    applications: tuple[str, ...]
    requests: Floats
    usage: Floats
    period: int


def synthetic(random: np.random.Generator, days: int = 8) -> TracedHost:
    """A host of the published generator: services with a diurnal load and batch in phases, requests 5 and 3 times."""
    tenants, samples = int(random.integers(12, 30)), days * DAY
    diurnal = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(samples) / DAY)
    names, requests, columns = [], [], []
    for _ in range(tenants):
        request = random.uniform(1, 8)
        if random.random() < 0.6:
            names.append(f"service-{random.integers(6)}")
            columns.append(request * (0.08 + 0.15 * diurnal) * random.lognormal(0, 0.08, samples))
        else:
            names.append(f"batch-{random.integers(6)}")
            phases = np.repeat(random.uniform(0.3, 1.6, samples // 12 + 1), 12)[:samples]
            columns.append(request * random.uniform(0.15, 0.5) * phases * random.lognormal(0, 0.25, samples))
        requests.append(request)
    usage = np.minimum(np.stack(columns, axis=1), requests)
    return TracedHost(tuple(names), np.array(requests), usage, DAY)


def aws(folder: Path, random: np.random.Generator) -> TracedHost:
    """CPU series of the NAB corpus side by side on one host; requests 1.2 to 4 times their greatest value."""
    pool = {
        name: v for name, v in public(folder, 4032)["nab-aws"].items() if "cpu" in name and len(v) >= 4032
    }
    names = tuple(random.choice(sorted(pool), int(random.integers(6, len(pool) + 1)), replace=False).tolist())
    usage = np.stack([np.roll(pool[name], int(random.integers(4032))) for name in names], axis=1)
    return TracedHost(names, usage.max(axis=0) * random.uniform(1.2, 4, len(names)), usage, DAY)


def alibaba(folder: Path, random: np.random.Generator) -> TracedHost:
    """CPU of traced machines as tenants of one large host; requests 1.2 to 4 times their greatest value."""
    pool = machines(folder, "cpu_util_percent")
    names = tuple(random.choice(sorted(pool), int(random.integers(6, 13)), replace=False).tolist())
    length = min(len(pool[name]) for name in names)
    usage = np.stack([np.asarray(pool[name][:length]) for name in names], axis=1)
    return TracedHost(names, usage.max(axis=0) * random.uniform(1.2, 4, len(names)), usage, 240)


@dataclass(frozen=True, slots=True, eq=False)
class PeakErrors:
    """Errors of one predictor on one host, against the next instant and against the horizon's peak."""

    instant: Floats
    horizon: Floats


def errors_of(host: TracedHost, horizon: int = 12, every: int = 6) -> tuple[dict[str, PeakErrors], Floats]:
    """Errors of every predictor after the first half of the trace, and of the predictor chosen at each time."""
    predicted: dict[str, list[float]] = {name: [] for name in PREDICTORS}
    now, peak = [], []
    for at, view in _views(host, horizon, every):
        for name, predict in PREDICTORS.items():
            predicted[name].append(predict(view))
        total = np.sum(host.usage[at : at + horizon], axis=1)
        now.append(float(total[0]))
        peak.append(float(np.max(total)))
    instant, highest = np.array(now), np.array(peak)
    found = {
        name: PeakErrors(
            backtest.errors(np.array(values), instant), backtest.errors(np.array(values), highest)
        )
        for name, values in predicted.items()
    }
    return found, _choices(found, horizon // every, np.sum(host.requests) / highest - 1)


def _views(host: TracedHost, horizon: int, every: int) -> Iterator[tuple[int, HostUsage]]:
    samples = len(host.usage)
    profile, learned = UsageProfile(), 0
    for at in range(samples // 4, samples - horizon, every):
        for t in range(learned, at):
            pods = [
                PodSample(application, request, used)
                for application, request, used in zip(
                    host.applications, host.requests.tolist(), host.usage[t].tolist(), strict=True
                )
            ]
            profile = observed(profile, pods, t // host.period)
        learned = at
        recent = host.usage[max(0, at - host.period) : at]
        tenants = [
            Tenant(application, float(request), recent[:, i])
            for i, (application, request) in enumerate(zip(host.applications, host.requests, strict=True))
        ]
        yield at, HostUsage(tenants, np.sum(recent, axis=1), profile)


def _choices(found: dict[str, PeakErrors], delay: int, whole: Floats) -> Floats:
    """Errors of the predictor chosen by the errors known at each time; the requests if none was chosen."""
    chosen = []
    for at in range(len(whole)):
        known = {name: errors.horizon[: max(0, at - delay)] for name, errors in found.items()}
        scores = {name: backtest.score(errors) for name, errors in known.items() if len(errors)}
        name = backtest.chosen(scores)
        chosen.append(float(whole[at]) if name is None else float(found[name].horizon[at]))
    return np.array(chosen)
