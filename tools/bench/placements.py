"""Cost of a placement decision, compared with the published 96 ms for 6,000 hosts and 10 ms for 500.

OPENBLAS_NUM_THREADS=1 python -m tools.bench.placements [--nodes 500,6000] [--decisions 30]

Every policy scores one pod on ALL nodes, without sampling, and then with the published sample of 5 %. It prints the
median and the greatest CPU time of the decisions, the ratio of the median to the published time, and the median wall
time, which other processes prolong on a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from perphd.cluster.scheduling.distribution import FLEET_CELLS
from perphd.cluster.scheduling.fleet import Fleet
from perphd.cluster.scheduling.placement import POLICIES, PlacementSettings, decided
from perphd.cluster.scheduling.profile import NodeProfile, Pod, PodKind, Surface, surface_of
from perphd.forecast.grid import GridDistribution
from perphd.forecast.usage_profile import UsageProfile
from perphd.qos.availability import DemandStage, availability

ALLOWED_MS = {500: 10.0, 6000: 96.0}
APPLICATIONS = 300
PODS = 30
"""Pods per node. The matched pairing is left out, because it needs a matching for each candidate."""
LEFT_OUT = ("optum-matched",)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="tools.bench.placements", description="Measure the cost of a placement decision."
    )
    parser.add_argument(
        "--nodes", type=lambda text: [int(each) for each in text.split(",")], default=[500, 6000]
    )
    parser.add_argument("--decisions", type=int, default=30)
    options = parser.parse_args()
    print("| nodes | policy | candidates | CPU ms | greatest CPU ms | of the allowed time | wall ms |")
    print("|---|---|---|---|---|---|---|")
    for nodes in options.nodes:
        rng = np.random.default_rng(1)
        fleet = made_fleet(nodes, rng)
        pods = [made_pod(rng, f"new{i}", stages=True) for i in range(options.decisions)]
        allowed = ALLOWED_MS.get(nodes, 96.0 * nodes / 6000)
        for policy in POLICIES:
            for ratio in (1.0, 0.05):
                if policy in LEFT_OUT:
                    continue
                settings = PlacementSettings(policy, ratio)
                decided(fleet, pods[0], 0.0, settings)  # makes the columns
                times = [_timed(fleet, pod, settings) for pod in pods]
                cpu, wall = zip(*times, strict=True)
                middle, share = statistics.median(cpu), "all" if ratio == 1.0 else "5 %"
                cells = [nodes, policy, share, f"{middle:.2f}", f"{max(cpu):.2f}", f"{middle / allowed:.3f}"]
                print("| " + " | ".join(map(str, cells)) + f" | {statistics.median(wall):.2f} |")
        _publishing(fleet, rng)


def _timed(fleet: Fleet, pod: Pod, settings: PlacementSettings) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    decided(fleet, pod, 0.0, settings)
    return (time.process_time() - used) * 1e3, (time.perf_counter() - began) * 1e3


def _publishing(fleet: Fleet, rng: np.random.Generator) -> None:
    profiles = [made_node(rng, profile.node) for profile in fleet.profiles[:100]]
    used = time.process_time()
    for profile in profiles:
        fleet.put(profile)
    print(
        f"\nA node that publishes again costs {(time.process_time() - used) * 1e3 / len(profiles):.2f} ms of CPU time."
    )


def made_fleet(nodes: int, rng: np.random.Generator) -> Fleet:
    """Nodes with ``PODS`` pods each, and a profile of a tenth of all pairs of applications."""
    pairs = rng.integers(0, APPLICATIONS, (APPLICATIONS * APPLICATIONS // 20, 2))
    peaks = {
        (min(f"a{a}", f"a{b}"), max(f"a{a}", f"a{b}")): {0: float(rng.uniform(0.2, 0.8))}
        for a, b in pairs.tolist()
    }
    return Fleet([made_node(rng, f"n{i}") for i in range(nodes)], UsageProfile(peaks))


def made_node(rng: np.random.Generator, name: str) -> NodeProfile:
    """A node of 64 or 128 CPUs with pods, distributions of their use, and time lines."""
    cores = float(rng.choice([64.0, 128.0]))
    pods = tuple(made_pod(rng, f"{name}-{i}") for i in range(PODS))
    line = availability(100.0, [made_stages(rng) for _ in range(3)])
    return NodeProfile(
        name,
        1,
        0.0,
        60.0,
        cores,
        cores * 4e9,
        pods,
        used_cores=float(rng.uniform(0.1, 0.6)) * cores,
        used_bytes=float(rng.uniform(0.2, 0.7)) * cores * 4e9,
        p99_cores=float(rng.uniform(0.2, 0.9)) * cores,
        mean_cores=float(rng.uniform(0.1, 0.5)) * cores,
        sd_cores=float(rng.uniform(0.01, 0.1)) * cores,
        running_cores=made_law(rng, cores),
        running_memory=made_law(rng, cores * 4e9),
        timelines={"disk": line, "network": line},
        capacities={"disk": 100.0, "network": 100.0},
    )


def made_law(rng: np.random.Generator, capacity: float) -> GridDistribution:
    """A bell curve around a random share of the capacity."""
    points = np.linspace(0, 1, FLEET_CELLS + 1)
    shares = np.exp(-0.5 * ((points - rng.uniform(0.3, 0.8)) / 0.08) ** 2)
    return GridDistribution(capacity, shares / shares.sum(), 0.0)


def made_stages(rng: np.random.Generator) -> list[DemandStage]:
    """Four stages."""
    ends = np.cumsum(rng.uniform(10, 60, 4)).tolist()
    return [
        DemandStage(start, end, float(rng.uniform(0, 30)))
        for start, end in zip([0.0, *ends], ends, strict=False)
    ]


_SURFACES: list[Surface] = [
    surface_of(lambda cpu, memory, own=own: 0.6 / (1 + np.exp(-10 * (cpu - 0.8) * (0.5 + own))))  # type: ignore[misc]
    for own in (0.1, 0.3, 0.6)
]


def made_pod(rng: np.random.Generator, name: str, *, stages: bool = False) -> Pod:
    """A pod whose distribution of CPU use has 80 outcomes."""
    cores, memory = float(rng.uniform(0.5, 3)), float(rng.uniform(1e9, 8e9))
    outcomes = rng.uniform(0.1, 1.0, 80)
    return Pod(
        name,
        f"a{rng.integers(APPLICATIONS)}",
        PodKind.SERVICE if rng.random() < 0.5 else PodKind.BATCH,
        cores,
        memory,
        _SURFACES[int(rng.integers(3))],
        cores_law={float(each) * cores: 1 / 80 for each in outcomes} if stages else {},
        memory_law={float(each) * memory: 1 / 80 for each in outcomes} if stages else {},
        stages={"disk": made_stages(rng), "network": made_stages(rng)} if stages else {},
    )


if __name__ == "__main__":
    main()
