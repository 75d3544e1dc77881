"""Nodes and pods for the tests of placement policies."""

from __future__ import annotations

import numpy as np

from perphd.cluster.scheduling.profile import NodeProfile, Pod, PodKind, Surface, surface_of
from perphd.forecast.usage_profile import PodSample, UsageProfile, merged, observed

GIB = float(1 << 30)


def pressure(own: float, load: float = 1.0, knee: float = 0.5):
    """A service's CPU pressure: a steep rise with the host's utilisation, the steeper the more it uses itself."""
    return lambda cpu, memory: np.clip(
        (1 / (1 + np.exp(-10 * (cpu - knee - 0.3) * (0.5 + own)))) * (0.5 + load / 2) * 0.6, 0, 1
    )


def slowdown(base: float = 0.4):
    """A batch job's completion time over the longest of its application."""
    return lambda cpu, memory: np.clip(
        base * (1 + 2 * np.maximum(0, cpu - 0.5) ** 2 + np.maximum(0, memory - 0.6)), 0, 1
    )


def flat(value: float) -> Surface:
    return surface_of(lambda cpu, memory: np.full_like(cpu, value), None)


def pod(name: str, application: str = "", cores: float = 1.0, gib: float = 1.0, **more) -> Pod:
    more.setdefault("kind", PodKind.SERVICE)
    return Pod(name, application or name, cores=cores, memory_bytes=gib * GIB, **more)


def node(
    name: str = "n1", pods: tuple[Pod, ...] = (), cores: float = 16.0, gib: float = 64.0, **more
) -> NodeProfile:
    values = {"generation": 1, "made_s": 0.0, "ttl_s": 60.0} | more
    return NodeProfile(name, cores=cores, memory_bytes=gib * GIB, pods=pods, **values)


def used_together(ratios: dict[tuple[str, str], float]) -> UsageProfile:
    """A profile in which each pair was seen once, at this ratio of use to requests."""
    profile = UsageProfile()
    for (first, second), ratio in ratios.items():
        seen = [PodSample(first, 1.0, ratio), PodSample(second, 1.0, ratio)]
        profile = merged([profile, observed(UsageProfile(), seen, 0)])
    return profile
