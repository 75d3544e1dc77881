"""Scores placements by utilisation gained and interference caused (Optum, EuroSys 2023).

Predicted use of host h with pods p_1 .. p_n and the candidate p_{n+1}, in the order of their arrival:

    POC = sum of ERO(A, B) (request_p + request_q) over consecutive pairs; an odd last pod counts at its request     (8)
    POM = sum of m_A * memory request
    RI  = interference of each pod at (POC / cores, POM / memory), at its own greatest use and load           (9), (10)
    Eq. 11 = (POC / cores) (POM / memory) - 0.7 sum of RI of services - 0.3 sum of RI of batch, with the candidate

Eq. 11 is the absolute score of the host after the placement. Greedy ascent of the published objective (Eq. 6), the sum
of these scores over all hosts, needs the difference after - before. With the absolute form, a busy host always ranks
behind an empty one, since the interference of all its pods counts against it: pods spread, which is the opposite of the
stated aim. The difference is therefore the default, and ``absolute`` selects Eq. 11 as printed. In the difference, the
candidate counts with its additional interference compared with an idle host.

Pairing. Each ERO bounds the use of its pair, so the pairing of least sum (``matched``) gives a bound that is as safe as
the published one and tighter. It costs a matching for each candidate host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import BaseColumns, Fleet, Mask, Rows, Scores, node_names
from perphd.cluster.scheduling.profile import (
    CPU_STEPS,
    MEMORY_STEPS,
    NodeProfile,
    Pod,
    PodKind,
    interpolated,
)
from perphd.forecast.histogram import Floats
from perphd.forecast.peaks import HostUsage, Tenant, matched, paired, predicted_memory
from perphd.forecast.usage_profile import UsageProfile, effective_ratio

SERVICE_WEIGHT: Final = 0.7
BATCH_WEIGHT: Final = 0.3
MEMORY_LIMIT_RATIO: Final = 0.8
"""Share of memory in use from which a host is not a candidate."""
PAIRINGS_KEPT: Final = 1 << 14
"""Maximum number of pairings of least sum that a fleet remembers."""
_NO_USAGE: Final[Floats] = np.zeros(0)
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class OptumSettings:
    """``absolute``: Eq. 11 as printed. ``tightest``: the pairing of least sum instead of that of Eq. 8."""

    service_weight: float = SERVICE_WEIGHT
    batch_weight: float = BATCH_WEIGHT
    absolute: bool = False
    tightest: bool = False

    def weight(self, kind: PodKind) -> float:
        """The weight of the interference of a pod of this kind."""
        return self.service_weight if kind is PodKind.SERVICE else self.batch_weight


MARGINAL: Final = OptumSettings()
AS_PRINTED: Final = OptumSettings(absolute=True)


class OptumColumns:
    """One row per node: predicted CPU of the pod pairs, the pod without a partner, predicted memory in bytes, and the
    summed interference surfaces of its services and of its batch pods.
    """

    def __init__(self, fleet: Fleet) -> None:
        n = len(fleet)
        self._fleet = fleet
        self.paired_cores = np.zeros(n)
        self.open_cores = np.zeros(n)
        self.open_application = np.full(n, -1, dtype=np.intp)
        self.predicted_bytes = np.zeros(n)
        self.surfaces = {kind: np.zeros((n, CPU_STEPS, MEMORY_STEPS)) for kind in PodKind}
        self.applications: list[str] = []
        self._numbers: dict[str, int] = {}
        for row, profile in enumerate(fleet.profiles):
            self.put(row, profile)

    def put(self, row: int, profile: NodeProfile) -> None:
        """Replace a row."""
        pods, usage = profile.pods, self._fleet.usage
        whole = pods[: len(pods) - len(pods) % 2]
        self.paired_cores[row] = predicted_cores(usage, whole)
        self.open_cores[row], self.open_application[row] = 0.0, -1
        if len(pods) % 2:
            self.open_cores[row] = pods[-1].cores
            self.open_application[row] = self._number(pods[-1].application)
        self.predicted_bytes[row] = sum(
            self._fleet.memory_ratio(pod.application) * pod.memory_bytes for pod in pods
        )
        for kind, surfaces in self.surfaces.items():
            surfaces[row] = 0.0
            for pod in pods:
                if pod.kind is kind and pod.interference is not None:
                    surfaces[row] += pod.interference.values

    def _number(self, application: str) -> int:
        number = self._numbers.get(application)
        if number is None:
            number = self._numbers[application] = len(self.applications)
            self.applications.append(application)
        return number

    def cores_with(self, pod: Pod, rows: Rows) -> Floats:
        """Eq. 8 for each row with ``pod`` added last."""
        numbers = self.open_application[rows]
        ratios = np.zeros(len(self.applications) + 1)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            ratios[number] = effective_ratio(self._fleet.usage, self.applications[number], pod.application)
        with_open = ratios[numbers] * (self.open_cores[rows] + pod.cores)
        result: Floats = self.paired_cores[rows] + np.where(numbers >= 0, with_open, pod.cores)
        return result


class MatchedColumns:
    """Pairings of least sum. A sum depends only on the applications and requests of a node's pods, in any order.

    The state before a decision is the state after an earlier decision, and repeated attempts to place a waiting pod
    need the same states, so most sums are already known. ``pairing`` computes a sum that is not.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._usage = fleet.usage
        self.pairing: Callable[[HostUsage], float] = matched
        self._least = lru_cache(PAIRINGS_KEPT)(self._matched)

    def put(self, row: int, profile: NodeProfile) -> None:
        """There is nothing to replace: sums are remembered by the set of pods, not by node."""

    def cores(self, pods: Iterable[Pod]) -> float:
        """The predicted peak CPU use of these pods on one host."""
        return self._least(tuple(sorted((pod.application, pod.cores) for pod in pods)))

    def _matched(self, pods: tuple[tuple[str, float], ...]) -> float:
        tenants = [Tenant(application, cores, _NO_USAGE) for application, cores in pods]
        return self.pairing(HostUsage(tenants, _NO_USAGE, self._usage))


def optum(fleet: Fleet, pod: Pod, rows: Rows, settings: OptumSettings = MARGINAL) -> Scores:
    """The score of ``pod`` on each candidate, which is the sum of the terms."""
    columns, base = fleet.columns(OptumColumns), fleet.columns(BaseColumns)
    cores, memory = base.of("cores", rows), base.of("memory_bytes", rows)
    if settings.tightest:
        profiles = [fleet.profiles[row] for row in rows.tolist()]
        least = fleet.columns(MatchedColumns)
        before = np.array([least.cores(each.pods) for each in profiles])
        after = np.array([least.cores((*each.pods, pod)) for each in profiles])
    else:
        before = columns.paired_cores[rows] + columns.open_cores[rows]
        after = columns.cores_with(pod, rows)
    bytes_before = columns.predicted_bytes[rows]
    bytes_after = bytes_before + fleet.memory_ratio(pod.application) * pod.memory_bytes
    u, v = before / cores, bytes_before / memory
    u_new, v_new = after / cores, bytes_after / memory
    base_share = 0.0 if settings.absolute else 1.0
    terms: dict[str, Floats] = {"utilisation": u_new * v_new - base_share * u * v}
    for kind, name in ((PodKind.SERVICE, "services here"), (PodKind.BATCH, "batch here")):
        surfaces = columns.surfaces[kind][rows]
        here = interpolated(surfaces, u_new, v_new)
        if not settings.absolute:
            here = here - interpolated(surfaces, u, v)
        terms[name] = -settings.weight(kind) * here
    terms["itself"] = np.zeros(len(rows))
    if pod.interference is not None:
        surface = np.broadcast_to(pod.interference.values, (len(rows), *pod.interference.values.shape))
        alone = pod.interference.at(0.0, 0.0)
        terms["itself"] = -settings.weight(pod.kind) * (
            interpolated(surface, u_new, v_new) - base_share * alone
        )
    refusals: dict[str, Mask] = {
        "its predicted CPU use would exceed the node": after > cores * (1 + _ROUNDING),
        "its predicted memory use would exceed the node": bytes_after > memory * (1 + _ROUNDING),
        f"{MEMORY_LIMIT_RATIO:.0%} or more of its memory is used": base.of("used_bytes", rows)
        >= MEMORY_LIMIT_RATIO * memory,
    }
    score = np.sum(np.stack(list(terms.values())), axis=0)
    name = "optum-eq11" if settings.absolute else "optum"
    return Scores(
        name + ("-matched" if settings.tightest else ""), node_names(fleet), rows, score, terms, refusals
    )


def predicted_cores(usage: UsageProfile, pods: Sequence[Pod], *, tightest: bool = False) -> float:
    """The predicted peak CPU use of these pods on one host."""
    host = HostUsage([Tenant(pod.application, pod.cores, _NO_USAGE) for pod in pods], _NO_USAGE, usage)
    return matched(host) if tightest else paired(host)


def host_value(
    usage: UsageProfile,
    cores: float,
    memory_bytes: float,
    pods: Sequence[Pod],
    settings: OptumSettings = MARGINAL,
) -> float:
    """One host's part of the objective (Eq. 6): utilisation product less weighted interference; 0 without pods.

    As in the difference form, each pod counts with its additional interference compared with an idle host; with
    ``absolute``, as printed. Minus infinity where predicted use exceeds the host.
    """
    used = predicted_cores(usage, pods, tightest=settings.tightest)
    held = predicted_memory(usage, [(pod.application, pod.memory_bytes) for pod in pods])
    if used > cores * (1 + _ROUNDING) or held > memory_bytes * (1 + _ROUNDING):
        return -np.inf
    u, v = used / cores, held / memory_bytes
    suffered = 0.0
    for pod in pods:
        if pod.interference is not None:
            alone = 0.0 if settings.absolute else pod.interference.at(0.0, 0.0)
            suffered += settings.weight(pod.kind) * (pod.interference.at(u, v) - alone)
    return u * v - suffered
