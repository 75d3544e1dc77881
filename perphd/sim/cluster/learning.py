"""Learns applications' profiles for the policies from samples of a simulated fleet (Optum's offline profilers).

Every sample of all pods contributes the greatest use of each pair of applications on one host (Eq. 4, 5),
interference as a function of the host's CPU utilisation (the mean of each tenth; Eq. 1 with a table in place
of a forest), and the ratio of use to request. Values in a table never decrease with utilisation. For a tenth that an
application has not seen, the fleet's mean there counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.cluster.scheduling.profile import CPU_STEPS, MEMORY_STEPS, PodKind, Surface, bucketed
from perphd.forecast.usage_profile import MemorySpread, UsageProfile, pair_of
from perphd.sim.cluster.division import Floats, Places

LAW_OUTCOMES: Final = 20
_LEAST_SAMPLES: Final = 5
_KEPT_RATIOS: Final = 4000
BATCH_BASE: Final = 0.4
"""Completion time of an undisturbed batch pod relative to the longest completion time of its application."""


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """``surfaces``: interference by application. ``laws``: equally likely ratios of CPU use to request."""

    usage: UsageProfile = field(default_factory=UsageProfile)
    surfaces: Mapping[str, Surface] = field(default_factory=dict)
    laws: Mapping[str, Floats] = field(default_factory=dict)

    def p99(self, application: str) -> float:
        """99th percentile of the ratio of use to request; 1 for an unknown application."""
        law = self.laws.get(application)
        return float(np.percentile(law, 99)) if law is not None else 1.0


class Learner:
    """Collects samples. ``kinds``: the applications' kinds, by number."""

    def __init__(self, names: Sequence[str], kinds: Sequence[PodKind]) -> None:
        n = len(names)
        self._names, self._kinds = names, kinds
        self.pairs = np.full((n, n), -np.inf)
        self._sums, self._counts = np.zeros((n, CPU_STEPS)), np.zeros((n, CPU_STEPS))
        self._ratios: list[list[Floats]] = [[] for _ in names]
        self._memory = np.zeros((n, 4))  # number of pods, sum, sum of squares, maximum

    def sample(
        self, node: Places, app: Places, request: Floats, used: Floats, suffered: Floats, host_ratio: Floats,
        memory_ratio: Floats,
    ) -> None:  # fmt: skip
        """Record one instant of all pods. ``suffered``: a service's PSI; ``BATCH_BASE`` times batch's slowdown."""
        ratio = used / request
        place = np.minimum((host_ratio * (CPU_STEPS - 1) + 0.5).astype(np.intp), CPU_STEPS - 1)
        np.add.at(self._sums, (app, place), suffered)
        np.add.at(self._counts, (app, place), 1.0)
        for number in np.unique(app).tolist():
            mine = app == number
            if sum(len(each) for each in self._ratios[number]) < _KEPT_RATIOS:
                self._ratios[number].append(ratio[mine])
            held = memory_ratio[mine]
            self._memory[number] += (len(held), held.sum(), (held * held).sum(), 0.0)
            self._memory[number, 3] = max(self._memory[number, 3], float(held.max()))
        order = np.argsort(node, kind="stable")
        bounds = np.nonzero(np.diff(node[order]))[0] + 1
        for here in np.split(order, bounds):
            if len(here) < 2:
                continue
            i, j = np.triu_indices(len(here), 1)
            first, second = here[i], here[j]
            together = (used[first] + used[second]) / (request[first] + request[second])
            np.maximum.at(self.pairs, (app[first], app[second]), together)

    def learned(self) -> Learned:
        """The profiles learned from all samples."""
        pairs = np.maximum(self.pairs, self.pairs.T)
        peaks = {
            pair_of(self._names[i], self._names[j]): {0: float(pairs[i, j])}
            for i, j in np.argwhere(np.isfinite(np.triu(pairs, 0)) & (np.triu(pairs, 0) > 0)).tolist()
        }
        memory = {}
        for number, (pods, total, squares, greatest) in enumerate(self._memory.tolist()):
            if pods:
                spread = max(squares - total * total / pods, 0.0)
                memory[self._names[number], "fleet"] = MemorySpread(
                    1, int(pods), total / pods, spread, greatest
                )
        laws = {
            name: np.quantile(np.concatenate(found), (np.arange(LAW_OUTCOMES) + 1.0) / LAW_OUTCOMES)
            for name, found in zip(self._names, self._ratios, strict=True)
            if found
        }
        return Learned(UsageProfile(peaks, memory), self._surfaces(), laws)

    def _surfaces(self) -> dict[str, Surface]:
        found = {}
        for kind in PodKind:
            mine = [n for n, each in enumerate(self._kinds) if each is kind]
            sums, counts = self._sums[mine].sum(0), self._counts[mine].sum(0)
            floor = 0.0 if kind is PodKind.SERVICE else BATCH_BASE
            fleet = np.maximum.accumulate(np.where(counts > 0, sums / np.maximum(counts, 1.0), floor))
            for n in mine:
                own = np.where(
                    self._counts[n] >= _LEAST_SAMPLES, self._sums[n] / np.maximum(self._counts[n], 1.0), fleet
                )
                values = np.repeat(np.maximum.accumulate(own)[:, None], MEMORY_STEPS, axis=1)
                found[self._names[n]] = Surface(bucketed(np.clip(values, 0.0, 1.0)))
        return found
