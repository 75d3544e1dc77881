"""DistSched, its ablations and the policies of its comparison, on gangs that share machines (chapter 5).

20 machines of 16 CPUs and 64 GiB run for half an hour at load 0.8, by the greater share of CPU and memory.
"""

from __future__ import annotations

from typing import Final

from perphd.sim.cluster.gang_jobs import GIB, GangShape, GangWork, drawn_gangs
from perphd.sim.cluster.packed import PackedCluster, PackedOutcome, PackedPolicy

MACHINES: Final = 20
SHAPE: Final = GangShape(hours=0.5, load=0.8, most_tasks=16, memory_median=4.0 * GIB)
PAST: Final = 40


def packed_run(policy: PackedPolicy, seed: int, shape: GangShape = SHAPE) -> PackedOutcome:
    """One policy on one seed's jobs."""

    def share(work: GangWork) -> float:
        used = max(work.cores / shape.cores_most, work.memory_bytes / shape.memory_most)
        return work.tasks * used / MACHINES

    drawn = drawn_gangs(shape, seed, share, PAST)
    cluster = PackedCluster(drawn.works, drawn.past, MACHINES, policy, shape.cores_most, shape.memory_most)
    return cluster.run(shape.hours * 3600.0)
