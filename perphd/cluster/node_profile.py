"""Converts a node's document into a profile for the placement policies. Pure.

Mapping:
    requests      the reserved amounts, as one pod
    use           mean and 99 % bound of the next minute; N(mean, sd) on the grid of ``scheduling.distribution``
    interference  each LRA's loss for one core less, in proportion to the cores used beyond the present use
"""

from __future__ import annotations

import numpy as np

from perphd.cluster.asking import ExtenderError
from perphd.cluster.document import NodeDocument, ResourceForecast
from perphd.cluster.scheduling.distribution import FLEET_CELLS
from perphd.cluster.scheduling.profile import (
    CPU_STEPS,
    MEMORY_STEPS,
    NodeProfile,
    Pod,
    PodKind,
    Surface,
)
from perphd.domain.reading import available, value_or
from perphd.forecast.grid import GridDistribution, of_outcomes


def profile_of(node: str, document: NodeDocument) -> NodeProfile:
    """The profile for the policies. Raises ExtenderError if the document lacks the node's size."""
    cpus, memory = document.capacity.cpus, document.capacity.memory_bytes
    if not available(cpus) or not available(memory) or min(cpus, memory) <= 0:
        raise ExtenderError(f"the document of {node} must state a capacity of CPUs and memory, both above 0")
    forecast = {each.resource: each for each in document.forecast}
    used = (value_or(document.used.cpus, 0.0), value_or(document.used.memory_bytes, 0.0))
    cpu, ram = forecast.get("cpu"), forecast.get("memory")
    held = Pod(
        "reserved",
        "reserved",
        PodKind.SERVICE,
        value_or(document.reserved.cpus, used[0]),
        value_or(document.reserved.memory_bytes, used[1]),
        _interference(document, used[0] / cpus, cpus),
    )
    return NodeProfile(
        node,
        document.generation,
        document.made_unix_s,
        document.ttl_s,
        cpus,
        memory,
        (held,),
        *used,
        p99_cores=held.cores if cpu is None else value_or(cpu.p99, held.cores),
        mean_cores=used[0] if cpu is None else value_or(cpu.mean, used[0]),
        sd_cores=0.0 if cpu is None else value_or(cpu.sd, 0.0),
        running_cores=_law(cpu, cpus, max(used[0], held.cores)),
        running_memory=_law(ram, memory, max(used[1], held.memory_bytes)),
    )


def _interference(document: NodeDocument, cpu_ratio: float, cpus: float) -> Surface:
    """Combined loss of all LRAs as the host's use grows beyond its present value; unknown losses count as 0."""
    loss = sum(
        value_or(cost.loss_ratio, 0.0)
        for lra in document.lras
        for cost in lra.sensitivity
        if cost.resource == "cpu"
    )
    beyond = np.maximum(0.0, np.linspace(0.0, 1.0, CPU_STEPS) - cpu_ratio) * cpus
    lost = np.minimum(loss * beyond, float(len(document.lras)))
    return Surface(np.repeat(lost[:, None], MEMORY_STEPS, axis=1))


def _law(forecast: ResourceForecast | None, capacity: float, otherwise: float) -> GridDistribution:
    """Distribution of use; without a forecast, the larger of reserved and used amounts with certainty."""
    if forecast is None or not available(forecast.mean) or not available(forecast.sd) or forecast.sd <= 0:
        return of_outcomes({max(0.0, otherwise): 1.0}, capacity, FLEET_CELLS)
    points = np.arange(FLEET_CELLS + 1) * (capacity / FLEET_CELLS)
    # The logistic approximation of the normal distribution, exact to .01.
    up_to = 1.0 / (1.0 + np.exp(-1.702 * (points - forecast.mean) / forecast.sd))
    return GridDistribution(capacity, np.diff(up_to, prepend=0.0), float(1.0 - up_to[-1]))
