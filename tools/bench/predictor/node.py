"""The simulated node's MySQL as a surface: the node model answers the same questions as the analytic surface."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.grant import Grant, grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.model import Node
from perphd.sim.node.workload import NodeWorkload

Floats = NDArray[np.float64]

_MACHINE = Machine(cores_per_socket=16, l3_bytes=11 << 20, llc_ways=11, memory_bytes=16 << 30)
_LEAST_LOAD, _LOAD_SPAN = 0.1, 1.1
"""Start and span of the archetype's own load that correspond to load 0..1 of a stream."""


@dataclass(frozen=True, eq=False)
class NodeSurface:
    """log-MIPS of one archetype with given cores, memory, ways, throttle level and load."""

    workload: NodeWorkload

    def log_performance(self, x: Floats) -> Floats:
        """Steady states of rows (n, 5) in the order of ``streams.FEATURES``."""
        memory = self.workload.memory
        rows = [
            [
                Grant(
                    cpus=_MACHINE.first_cores(round(cores)),
                    masks=((1 << round(ways)) - 1,),
                    mba_pct=(round(mbw),),
                    memory_bytes=memory.anon_bytes + part * memory.cache_bytes,
                )
            ]
            for cores, part, ways, mbw, _ in x
        ]
        node = Node(_MACHINE, [self.workload])
        load = _LEAST_LOAD + _LOAD_SPAN * x[:, 4:5]
        found = node.solve(grants(_MACHINE, rows), load, chunk=max(len(rows), 1))
        return np.asarray(np.log(np.maximum(found.mips[:, 0], 1.0)), dtype=np.float64)


def mysql(drifted: bool = False) -> NodeSurface:
    """MySQL under an open load; after the drift its data no longer fit the cache and its code is slower."""
    found = archetype("mysql-oltp").workload
    assert found.requests is not None
    # Ten thousand transactions per second exceed the capacity of half of the cores: at low load, work follows load; at
    # high load, it follows the grant.
    requests = replace(found.requests, clients=None, rate_per_s=10_000.0)
    code = replace(found.code, mpki_scale_bytes=7e6, cpi=1.25) if drifted else found.code
    return NodeSurface(replace(found, requests=requests, code=code))
