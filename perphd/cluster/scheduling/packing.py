"""Packing rules for comparison, and the balanced fallback for nodes whose profile is stale.

    alignment         <request, X>            X: use (aggressive) or requests (conservative), as shares of the node
    Resource Central  feasible if the sum of the pods' 99th percentiles stays within 0.8 of the CPUs, and requests
                      within 1.2 of them
    N-sigma           feasible if mean + 5 sd of the node's use stays within its CPUs
    Borg-like         feasible if 0.9 of the requests stay within its CPUs
    balanced          the mean of "least requested" and "balanced CPU and memory", as in kube-scheduler

The first four are the comparison policies of Optum (EuroSys 2023). A new pod has no use yet, so it counts with its
request. The source states which nodes are feasible but not which of them is taken. Here it is the fullest node by the
same prediction, since all of these policies aim to pack. Memory is never over-committed: requests stay within the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import BaseColumns, Fleet, Mask, Rows, Scores, node_names
from perphd.cluster.scheduling.profile import Pod, PodKind
from perphd.forecast.histogram import Floats
from perphd.forecast.peaks import BORG_FACTOR, SIGMAS

CENTRAL_LIMIT_RATIO: Final = 0.8
CENTRAL_OVERCOMMIT: Final = 1.2
_ROUNDING: Final = 1e-9


def _exceeds(left: Floats, right: Floats) -> Mask:
    result: Mask = left > right * (1.0 + _ROUNDING)
    return result


def _memory(base: BaseColumns, pod: Pod, rows: Rows) -> dict[str, Mask]:
    held = base.of("requested_bytes", rows) + pod.memory_bytes
    return {"its memory request does not fit": _exceeds(held, base.of("memory_bytes", rows))}


def alignment(fleet: Fleet, pod: Pod, rows: Rows) -> Scores:
    """Alibaba's alignment: batch by use (aggressive), services by requests (conservative); the largest wins."""
    base = fleet.columns(BaseColumns)
    cores, memory = base.of("cores", rows), base.of("memory_bytes", rows)
    by_use = pod.kind is PodKind.BATCH
    x_cores = base.of("used_cores" if by_use else "requested_cores", rows)
    x_memory = base.of("used_bytes" if by_use else "requested_bytes", rows)
    terms = {
        "CPU": pod.cores / cores * (x_cores / cores),
        "memory": pod.memory_bytes / memory * (x_memory / memory),
    }
    refusals = _memory(base, pod, rows)
    refusals[
        "its CPU request does not fit beside the present use" if by_use else "its CPU request does not fit"
    ] = _exceeds(x_cores + pod.cores, cores)
    return Scores("alignment", node_names(fleet), rows, terms["CPU"] + terms["memory"], terms, refusals)


def _fullest(fleet: Fleet, pod: Pod, rows: Rows, name: str, predicted: Floats, limit: Floats) -> Scores:
    base = fleet.columns(BaseColumns)
    share = predicted / base.of("cores", rows)
    refusals = _memory(base, pod, rows)
    refusals["its predicted CPU use would exceed the node"] = _exceeds(predicted, limit)
    return Scores(name, node_names(fleet), rows, share, {"predicted CPU share": share}, refusals)


def resource_central(fleet: Fleet, pod: Pod, rows: Rows) -> Scores:
    """Resource Central: predicts the sum of the pods' own 99th percentiles; also limits the sum of the requests."""
    base = fleet.columns(BaseColumns)
    cores = base.of("cores", rows)
    predicted = base.of("p99_cores", rows) + pod.cores
    scores = _fullest(fleet, pod, rows, "resource-central", predicted, CENTRAL_LIMIT_RATIO * cores)
    requested = base.of("requested_cores", rows) + pod.cores
    over = {
        f"its requests would exceed {CENTRAL_OVERCOMMIT:g} of the node": _exceeds(
            requested, CENTRAL_OVERCOMMIT * cores
        )
    }
    return Scores(scores.policy, scores.nodes, rows, scores.score, scores.terms, {**scores.refusals, **over})


def n_sigma(fleet: Fleet, pod: Pod, rows: Rows) -> Scores:
    """N-sigma: predicts the mean of the node's use plus five standard deviations."""
    base = fleet.columns(BaseColumns)
    predicted = base.of("mean_cores", rows) + SIGMAS * base.of("sd_cores", rows) + pod.cores
    return _fullest(fleet, pod, rows, "n-sigma", predicted, base.of("cores", rows))


def borg_like(fleet: Fleet, pod: Pod, rows: Rows) -> Scores:
    """Borg-like: predicts a fixed share of the requests."""
    base = fleet.columns(BaseColumns)
    predicted = BORG_FACTOR * (base.of("requested_cores", rows) + pod.cores)
    return _fullest(fleet, pod, rows, "borg", predicted, base.of("cores", rows))


def balanced(fleet: Fleet, pod: Pod, rows: Rows) -> Scores:
    """Ranks by requests alone, independent of stale profiles: prefers the lowest and most balanced requests."""
    base = fleet.columns(BaseColumns)
    cpu = (base.of("requested_cores", rows) + pod.cores) / base.of("cores", rows)
    memory = (base.of("requested_bytes", rows) + pod.memory_bytes) / base.of("memory_bytes", rows)
    terms = {
        "least requested": 0.5 * (1.0 - (cpu + memory) / 2),
        "balance": 0.5 * (1.0 - np.abs(cpu - memory) / 2),
    }
    refusals = _memory(base, pod, rows)
    refusals["its CPU request does not fit"] = _exceeds(cpu, np.ones(len(rows)))
    return Scores(
        "balanced", node_names(fleet), rows, terms["least requested"] + terms["balance"], terms, refusals
    )


PACKING: Final[dict[str, Callable[[Fleet, Pod, Rows], Scores]]] = {
    "alignment": alignment,
    "resource-central": resource_central,
    "n-sigma": n_sigma,
    "borg": borg_like,
    "balanced": balanced,
}
"""The packing rules by name."""
