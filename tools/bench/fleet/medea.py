"""Medea's placement of long-running pods: one integer program for a group of them (EuroSys 2018), by requests.

    maximise  sum of x_ph - FRAGMENTED / hosts * sum of y_h       x: pod p on host h,  y: host h gets one of them
    for every pod:   sum over h of x_ph <= 1
    for every host:  requests of CPU and memory within what is free;  sum over p of x_ph <= pods * y_h

The groups have the limits set by Optum's authors: 15 pods on the 40 hosts with the most free resources. The simulated
workload has no affinities, so Medea's objective reduces to the number of placed pods and of hosts left whole. HiGHS
solves the program in this process. The cheap scheduler places batch, one pod at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from perphd.batch.solver import solved
from perphd.cluster.scheduling.profile import NodeProfile, Pod

GROUP_PODS: Final = 15
GROUP_HOSTS: Final = 40
FRAGMENTED: Final = 0.5
TIME_LIMIT_S: Final = 5.0


def medea(hosts: Sequence[NodeProfile], pods: Sequence[Pod]) -> tuple[str | None, ...]:
    """The host of each pod, None if no host fits; at most ``GROUP_PODS`` pods.

    Raises:
        ValueError: too many pods for one program.
    """
    if len(pods) > GROUP_PODS:
        raise ValueError(f"{len(pods)} pods exceed the limit of one program ({GROUP_PODS})")
    near = sorted(hosts, key=lambda host: host.requested_cores - host.cores)[:GROUP_HOSTS]
    free = np.array([[h.cores - h.requested_cores, h.memory_bytes - h.requested_bytes] for h in near])
    free = np.maximum(free / np.array([near[0].cores, near[0].memory_bytes]), 0.0)
    asked = np.array([[pod.cores / near[0].cores, pod.memory_bytes / near[0].memory_bytes] for pod in pods])
    n, m = len(pods), len(near)
    rows, bounds = [], []
    for p in range(n):
        row = np.zeros(n * m + m)
        row[p * m : (p + 1) * m] = 1.0
        rows.append(row)
        bounds.append(1.0)
    for h in range(m):
        for resource in range(2):
            row = np.zeros(n * m + m)
            row[h : n * m : m] = asked[:, resource]
            rows.append(row)
            bounds.append(float(free[h, resource]))
        row = np.zeros(n * m + m)
        row[h : n * m : m] = 1.0
        row[n * m + h] = -float(n)
        rows.append(row)
        bounds.append(0.0)
    worth = np.concatenate([np.ones(n * m), np.full(m, -FRAGMENTED / m)])
    found = solved(
        {
            "worth": worth.tolist(),
            "rows": [row.tolist() for row in rows],
            "bounds": bounds,
            "start": [0.0] * (n * m + m),
            "time_limit_s": TIME_LIMIT_S,
        }
    )
    if found is None:
        return (None,) * n
    chosen = np.array(found[: n * m]).reshape(n, m) > 0.5
    return tuple(near[int(row.argmax())].node if row.any() else None for row in chosen)
