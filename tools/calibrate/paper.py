"""Compare the paper's applications with its figures for native YARN, CPU shares (CPU-SBS) and run-alone.

Perph's own results are not a target, because they must follow from the loop. Ratios are derived from the paper's
statements (each LRA beside the PI job on a Silver 4110 node):

    mysqlslap: completion time Perph / alone 1.165, Perph / YARN 0.494, Perph / CPU-SBS 0.621
    TPC-H:     queries per hour Perph / alone 0.81, Perph / YARN 1.19, Perph / CPU-SBS 1.15
    Kafka:     throughput Perph / alone 0.86, Perph / YARN 2.01, Perph / CPU-SBS 1.82;
               median latency YARN / CPU-SBS from -57.4 % and -51.2 %; p99 CPU-SBS / YARN 1.704
    TPC-C:     transactions Perph / YARN 1.35, Perph / CPU-SBS 1.23
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy.optimize import differential_evolution  # type: ignore[import-untyped]

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.grant import Grant, grants
from perphd.sim.node.machine import SILVER_4110
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import Outcome
from perphd.sim.node.workload import NodeWorkload

_THREAD_WEIGHT = 100.0
_NATIVE_ROUNDS = 8

TARGETS: dict[str, dict[str, float]] = {
    # The paper does not state run-alone here. In the other three cases, Perph reaches 0.81 to 0.86 of it; native YARN
    # is then 0.84 / 1.35.
    "mysql-oltp": {"native / alone": 0.84 / 1.35, "shares / alone": 0.84 / 1.23},
    "mysql-short": {"native / alone": 0.494 / 1.165, "shares / alone": 0.621 / 1.165},
    "mysql-olap": {"native / alone": 0.81 / 1.19, "shares / alone": 0.81 / 1.15},
    "kafka-stream": {
        "native / alone": 0.86 / 2.01,
        "shares / alone": 0.86 / 1.82,
        "p50 shares / native": 0.426 / 0.488,
    },
}
"""Throughput ratios unless said otherwise."""


@dataclass(frozen=True, slots=True)
class Schemes:
    """The LRA alone, under native YARN (no groups: thread against thread) and under CPU-SBS (a group each)."""

    alone: Outcome
    native: Outcome
    shares: Outcome

    def ratio(self, name: str) -> float:
        """Name of a target."""
        what, _, words = name.rpartition("p50 ")
        over, _, under = words.partition(" / ")
        field = "p50_ms" if "p50" in what + name else "work_per_s"
        return float(getattr(getattr(self, over), field) / getattr(getattr(self, under), field))


def schemes(lra: NodeWorkload, batch: NodeWorkload) -> Schemes:
    """All three on the paper's node."""
    node = Node(SILVER_4110, [lra, batch])
    running = np.array([[8.0, float(batch.threads)]])
    native = None
    for _ in range(_NATIVE_ROUNDS):
        table = grants(SILVER_4110, [[Grant(), Grant()]])
        table.weight = _THREAD_WEIGHT * np.maximum(1.0, running)
        table.mine = np.full((1, 2, 2), _THREAD_WEIGHT)
        table.theirs = np.repeat(table.weight[:, None, :], 2, axis=1)
        table.flat = np.ones((1, 2))
        native = node.solve(table)
        running = 0.5 * running + 0.5 * native.runnable
    assert native is not None
    return Schemes(
        alone=Node(SILVER_4110, [lra]).solve([Grant()]).of(0),
        native=native.of(0),
        shares=node.solve([Grant(), Grant()]).of(0),
    )


def ratios(name: str, lra: NodeWorkload | None = None) -> dict[str, float]:
    """The archetype's ratios, by the targets' names."""
    found = schemes(lra or archetype(name).workload, archetype("batch-pi").workload)
    return {target: found.ratio(target) for target in TARGETS[name]}


BOUNDS: dict[str, dict[str, tuple[float, float]]] = {
    "mysql-oltp": {
        "serial_ms": (0.01, 0.12),
        "wait_ms": (1.0, 15.0),
        "mix_cost": (0.3, 1.2),
        "crosstalk": (0.0, 0.02),
    },
    "mysql-short": {"serial_ms": (0.005, 0.035), "wait_ms": (0.02, 0.6), "mix_cost": (0.3, 0.9)},
    "mysql-olap": {"mix_cost": (0.0, 0.6), "mix_relief": (0.0, 0.4), "switch_cost": (0.0, 0.1)},
    "kafka-stream": {"serial_ms": (0.01, 0.04), "wait_ms": (0.05, 0.6), "mix_cost": (0.3, 0.9)},
}


def with_requests(lra: NodeWorkload, values: dict[str, float]) -> NodeWorkload:
    """The LRA with these fields of its requests."""
    assert lra.requests is not None
    return replace(lra, requests=replace(lra.requests, **cast(Any, values)))


def fit(name: str, seed: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """The plausible parameters closest to the targets, and their ratios."""
    base, bounds = archetype(name).workload, BOUNDS[name]

    def cost(x: list[float]) -> float:
        found = ratios(name, with_requests(base, dict(zip(bounds, map(float, x), strict=True))))
        return sum(float(np.log(found[key] / wanted)) ** 2 for key, wanted in TARGETS[name].items())

    found = differential_evolution(
        cost, list(bounds.values()), seed=seed, maxiter=8, popsize=5, tol=1e-3, polish=False
    )
    values = {key: float(f"{value:.3g}") for key, value in zip(bounds, found.x, strict=True)}
    return values, ratios(name, with_requests(base, values))
