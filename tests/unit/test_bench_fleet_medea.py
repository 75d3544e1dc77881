"""Medea's program beside exhaustive search, and as a contestant on the simulated fleet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import NodeProfile, Pod, PodKind
from perphd.sim.cluster.fleet_events import replayed
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FleetShape, drawn
from perphd.sim.cluster.simulator import FleetSimulator
from tools.bench.fleet.medea import FRAGMENTED, GROUP_PODS, medea

GIB = float(1 << 30)


def _pod(name: str, cores: float, gib: float) -> Pod:
    return Pod(name, name, PodKind.SERVICE, cores, gib * GIB)


def _hosts(resident: list[tuple[float, float]]) -> list[NodeProfile]:
    return [
        NodeProfile(f"h{n}", 1, 0.0, 60.0, 8.0, 16 * GIB, (_pod(f"r{n}", *each),))
        for n, each in enumerate(resident)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_the_program_is_as_good_as_exhaustive_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hosts = _hosts([(float(rng.uniform(0, 6)), float(rng.uniform(0, 12))) for _ in range(3)])
    pods = [_pod(f"p{n}", float(rng.uniform(1, 5)), float(rng.uniform(1, 8))) for n in range(4)]

    def worth(places: tuple[int, ...]) -> float:
        for host, profile in enumerate(hosts):
            mine = [pod for pod, place in zip(pods, places, strict=True) if place == host]
            if profile.requested_cores + sum(pod.cores for pod in mine) > 8.0 + 1e-9:
                return -1.0
            if profile.requested_bytes + sum(pod.memory_bytes for pod in mine) > 16 * GIB + 1:
                return -1.0
        used = {place for place in places if place >= 0}
        return sum(place >= 0 for place in places) - FRAGMENTED / len(hosts) * len(used)

    best = max(worth(places) for places in product(range(-1, 3), repeat=4))
    names = {profile.node: n for n, profile in enumerate(hosts)}
    found = tuple(-1 if node is None else names[node] for node in medea(hosts, pods))
    assert worth(found) == pytest.approx(best, abs=1e-3)


def test_a_group_has_a_limit() -> None:
    with pytest.raises(ValueError, match=r"16 pods exceed the limit of one program \(15\)"):
        medea(_hosts([(1.0, 1.0)]), [_pod(f"p{n}", 1.0, 1.0) for n in range(GROUP_PODS + 1)])


def test_services_are_placed_in_groups_and_batch_one_by_one() -> None:
    shape = FleetShape(nodes=3, hours=0.1, service_requests=0.3, jobs_per_h=120, services=5, batches=4)
    workload = drawn(shape, 1)
    groups: list[int] = []

    def counted(hosts: Sequence[NodeProfile], pods: Sequence[Pod]) -> tuple[str | None, ...]:
        groups.append(len(pods))
        assert all(pod.kind is PodKind.SERVICE for pod in pods)
        return medea(hosts, pods)

    settings = FleetSettings(PlacementSettings("balanced"), together=counted, group=GROUP_PODS)
    run = FleetSimulator(workload, shape.nodes, settings).run(360.0)
    services = sum(pod.kind is PodKind.SERVICE for pod in workload.pods)
    assert sum(groups) >= services
    assert max(groups) <= GROUP_PODS
    assert sum(not np.isnan(each) for each in run.started_s) > services
    assert replayed(run.events)
