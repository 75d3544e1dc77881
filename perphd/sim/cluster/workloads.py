"""Applications drawn from published facts about the Google cluster of 2011 (Pace 2018, 3.3.1; clusterdata-2011-2).

Requests of one task are drawn from the quantiles of the jobs that ran at the start of the trace: cores, GiB and tasks,
joined by a Gaussian copula with the correlations of their logarithms. The preparation is the published one: ten tasks
for every batch task, requests times 0.7, at most 32/15 cores and a fifth of a host's memory for one component; four of
five applications are batch, four of five of these are elastic with one to four core components; bursty submissions.

Our own assumptions, since no figure is published: run times of batch work are log-normal (median 6,000 s,
sigma 1.8) and at most a tenth of 90 days. A whole application stays within ``GREATEST_SHARE`` of the cluster,
because a rigid application that exceeds the cluster never runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from perphd.sim.cluster.applications import Application

Floats: TypeAlias = npt.NDArray[np.float64]

QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
CORES: Final = (0.05, 0.1, 0.3, 1.0, 2.0, 4.0, 4.8, 8.0, 16.0)
MEMORY_GIB: Final = (0.1, 0.23, 0.8, 2.18, 6.11, 11.1, 15.7, 26.6, 122.0)
TASKS: Final = (1.0, 1.0, 1.0, 1.0, 4.0, 30.0, 100.0, 500.0, 20010.0)
"""Quantiles over the jobs that were running when the trace began. The first column is our assumption: at most
half of the fifth percentile, and one task.
"""
CORES_TO_MEMORY: Final = 0.585
TASKS_TO_MEMORY: Final = 0.13
"""Correlations of the logarithms."""

HOST_CORES: Final = 32
HOST_GIB: Final = 128
BATCH_RATIO: Final = 0.8
ELASTIC_RATIO: Final = 0.8
SIZE: Final = 0.7
TASKS_FACTOR: Final = 10
GREATEST_CORES: Final = HOST_CORES / 15
GREATEST_GIB: Final = HOST_GIB / 5
GREATEST_CORE_COMPONENTS: Final = 4
GREATEST_SHARE: Final = 0.5

RUN_MEDIAN_S: Final = 6000.0
RUN_SIGMA: Final = 1.8
RUN_LONGEST_S: Final = 0.1 * 90 * 86400.0
INTERACTIVE_RUN_S: Final = ((0.05, 0.0, 30.0), (0.9, 30.0, 50430.0), (0.05, 50430.0, 50460.0))
"""(share, from, to) of uniform run times of interactive work."""
BURST_RATIO: Final = 0.9
BURST_GAP: Final = 0.1
"""Nine of ten submissions follow the previous one after a tenth of the mean gap; the others follow after a
long gap.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """For every job, the requests of one task (cores, GiB) and the number of tasks."""

    cores: Floats
    memory_gib: Floats
    tasks: Floats


def requests(rng: np.random.Generator, count: int) -> Requests:
    """Draw ``count`` jobs as in the trace, before the published preparation."""
    correlations = np.eye(3)
    correlations[0, 1] = correlations[1, 0] = CORES_TO_MEMORY
    correlations[1, 2] = correlations[2, 1] = TASKS_TO_MEMORY
    normal = rng.standard_normal((count, 3)) @ np.linalg.cholesky(correlations).T
    cdf = np.vectorize(NormalDist().cdf, otypes=[np.float64])(normal)
    cores, memory, tasks = (
        np.exp(np.interp(cdf[:, n], QUANTILES, np.log(values)))
        for n, values in enumerate((CORES, MEMORY_GIB, TASKS))
    )
    return Requests(cores, memory, np.round(tasks))


def google_2011(
    seed: int, count: int, hosts: int, load: float, interactive: bool = True
) -> tuple[list[Application], int]:
    """Applications, and the capacity of ``hosts`` hosts, both in MiB of memory.

    Zoe packs memory and leaves the CPU to the hosts, so memory is the resource. ``load``: offered work
    relative to the hosts' capacity until the last submission. ``interactive``: include interactive
    applications.
    """
    rng = np.random.default_rng(seed)
    capacity = hosts * HOST_GIB * 1024
    asked = requests(rng, count)
    is_batch = rng.random(count) < (BATCH_RATIO if interactive else 1.0)
    is_elastic = rng.random(count) < ELASTIC_RATIO
    run_s = np.where(is_batch, _batch_run_s(rng, count), _interactive_run_s(rng, count))
    core_components = np.maximum(1, rng.integers(0, GREATEST_CORE_COMPONENTS + 1, count))
    drawn = []
    for n in range(count):
        cores = min(float(asked.cores[n]) * SIZE, GREATEST_CORES)
        gib = min(float(asked.memory_gib[n]) * SIZE, GREATEST_GIB)
        unit = max(1, round(gib * 1024))
        components = int(asked.tasks[n]) * (TASKS_FACTOR if is_batch[n] else 1)
        components = max(1, min(components, math.floor(GREATEST_SHARE * capacity / unit)))
        core = min(components, int(core_components[n])) if is_elastic[n] or not is_batch[n] else components
        drawn.append(
            Application(
                f"a{n}",
                0.0,
                core * unit,
                (components - core) * unit,
                float(run_s[n]),
                unit,
                components,
                components * cores * gib,
                not bool(is_batch[n]),
            )
        )
    gaps = rng.exponential(
        np.where(
            rng.random(count) < BURST_RATIO, BURST_GAP, (1.0 - BURST_RATIO * BURST_GAP) / (1.0 - BURST_RATIO)
        )
    )
    length_s = sum(each.work for each in drawn) / (capacity * load)
    times_s = (np.cumsum(gaps) - gaps[0]) / gaps.sum() * length_s
    submitted = [replace(each, submitted_s=float(at_s)) for each, at_s in zip(drawn, times_s, strict=True)]
    return submitted, capacity


def _batch_run_s(rng: np.random.Generator, count: int) -> Floats:
    drawn = np.exp(math.log(RUN_MEDIAN_S) + RUN_SIGMA * rng.standard_normal(count))
    result: Floats = np.clip(drawn, 30.0, RUN_LONGEST_S)
    return result


def _interactive_run_s(rng: np.random.Generator, count: int) -> Floats:
    shares = [share for share, _, _ in INTERACTIVE_RUN_S]
    kind = rng.choice(len(shares), size=count, p=shares)
    low = np.array([each[1] for each in INTERACTIVE_RUN_S])[kind]
    high = np.array([each[2] for each in INTERACTIVE_RUN_S])[kind]
    result: Floats = np.maximum(1.0, rng.uniform(low, high))
    return result
