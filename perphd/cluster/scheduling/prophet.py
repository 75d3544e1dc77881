"""Scores how a pod's demand over time fits each node's free resources (Prophet, ICAC 2016).

Uses the same areas as ``qos.availability``: unused F and over-allocated O between the breakpoints of the pod's stages
and of the node's timeline. Each resource's 0.7 O + 0.3 F is divided by its capacity and the pod's length; the Euclidean
norm combines the resources. The node with the smallest norm fits best. All nodes' timelines are padded to one length,
so that a stage is compared with all of them at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import BaseColumns, Fleet, Mask, Rows, Scores, node_names
from perphd.cluster.scheduling.profile import NodeProfile, Pod
from perphd.forecast.histogram import Floats
from perphd.qos.availability import ETA, GREATEST_OVER_RATIO

INTERVALS: Final = 16
"""Initial number of intervals of a timeline; the columns grow when a node publishes more."""


class _Line:
    def __init__(self, n: int, intervals: int) -> None:
        self.capacity = np.full(n, np.nan)
        self.start_s = np.zeros((n, intervals))
        self.end_s = np.zeros((n, intervals))
        self.available = np.zeros((n, intervals))

    def widen(self, intervals: int) -> None:
        missing = intervals - self.start_s.shape[1]
        for name in ("start_s", "end_s", "available"):
            setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, missing))))


class TimelineColumns:
    """The timelines of all nodes by resource; unused places have length 0."""

    def __init__(self, fleet: Fleet) -> None:
        self._n = len(fleet)
        self.lines: dict[str, _Line] = {}
        for row, profile in enumerate(fleet.profiles):
            self.put(row, profile)

    def put(self, row: int, profile: NodeProfile) -> None:
        """Replace a row."""
        for line in self.lines.values():
            line.capacity[row] = np.nan
        for name, intervals in profile.timelines.items():
            line = self.lines.setdefault(name, _Line(self._n, INTERVALS))
            if len(intervals) > line.start_s.shape[1]:
                line.widen(2 * len(intervals))
            line.capacity[row] = profile.capacities[name]
            line.start_s[row] = line.end_s[row] = line.available[row] = 0.0
            for place, each in enumerate(intervals):
                line.start_s[row, place] = each.start_s
                line.end_s[row, place] = each.end_s
                line.available[row, place] = each.available


def prophet(fleet: Fleet, pod: Pod, rows: Rows, most_over: float = GREATEST_OVER_RATIO) -> Scores:
    """The fit of ``pod`` on each candidate: the negative norm, with each resource's share as terms.

    A node without a timeline of a resource that the pod demands is not a candidate.
    """
    base, columns = fleet.columns(BaseColumns), fleet.columns(TimelineColumns)
    terms: dict[str, Floats] = {}
    over_ratio, squares = np.zeros(len(rows)), np.zeros(len(rows))
    unknown = np.zeros(len(rows), dtype=bool)
    for name, stages in pod.stages.items():
        length_s = max((stage.end_s for stage in stages), default=0.0)
        line = columns.lines.get(name)
        if line is None:
            unknown[:] = True
            continue
        if length_s <= 0:
            continue
        start_s, end_s = line.start_s[rows], line.end_s[rows]
        available, capacity = line.available[rows], line.capacity[rows]
        unused, over = np.zeros(len(rows)), np.zeros(len(rows))
        for k, stage in enumerate(stages):
            overlap = np.minimum(end_s, stage.end_s) - np.maximum(start_s, stage.start_s)
            area = (available - stage.peak) * np.maximum(overlap, 0.0) * (1.0 - k / len(stages))
            unused += np.maximum(area, 0.0).sum(axis=1)
            over += np.maximum(-area, 0.0).sum(axis=1)
        whole = capacity * length_s
        missing = np.isnan(capacity)
        unknown |= missing
        whole = np.where(missing, 1.0, whole)
        terms[name] = ((1.0 - ETA) * over + ETA * unused) / whole
        squares += terms[name] ** 2
        over_ratio += over / whole
    norm = np.sqrt(squares)
    parts = {
        name: -np.divide(values**2, norm, out=np.zeros(len(rows)), where=norm > 0)
        for name, values in terms.items()
    }
    refusals: dict[str, Mask] = {
        "its CPU request does not fit": base.of("requested_cores", rows) + pod.cores > base.of("cores", rows),
        "its memory request does not fit": base.of("requested_bytes", rows) + pod.memory_bytes
        > base.of("memory_bytes", rows),
        "the node publishes no timeline of a resource that the pod demands": unknown,
    }
    if not pod.overdue:
        refusals[f"it would over-allocate more than {most_over:.0%}"] = over_ratio > most_over
    return Scores("prophet", node_names(fleet), rows, -norm, parts, refusals)
