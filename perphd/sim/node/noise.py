"""Measurement noise, added to the model's results and kept separate from the model.

Coefficients of variation within one virtual machine, measured on Azure VMs by class of resource: sysbench CPU 0.001,
PostgreSQL TPC-B 0.010, memory bandwidth 0.022, Redis GET 0.042, stress-ng's cache stressor 0.142.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from perphd.sim.node.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Noise:
    """Coefficients of variation of one reading, by kind of reading."""

    cpu: float = 0.001
    work: float = 0.010
    latency: float = 0.042
    bandwidth: float = 0.022
    cache: float = 0.05

    def reading(self, truth: Outcome, random: Random) -> Outcome:
        """One noisy reading. Log-normal with mean 1, so that it stays positive and unbiased."""

        def factor(cov: float) -> float:
            return math.exp(random.gauss(0.0, cov) - cov * cov / 2.0)

        work, latency, cpu = factor(self.work), factor(self.latency), factor(self.cpu)
        tail = factor(self.latency)
        return replace(
            truth,
            usage_cores=truth.usage_cores * cpu,
            work_per_s=truth.work_per_s * work,
            mips=truth.mips * work * factor(self.cpu),
            p50_ms=truth.p50_ms * latency,
            p95_ms=truth.p95_ms * latency * tail,
            p99_ms=truth.p99_ms * latency * tail * tail,
            bandwidth_bytes_per_s=truth.bandwidth_bytes_per_s * factor(self.bandwidth),
            occupancy_bytes=truth.occupancy_bytes * factor(self.cache),
            mpki=truth.mpki * factor(self.cache),
        )
