"""Published policies in the unmodified daemon, where they replace its policy ``none``."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from perphd.agent.composition import POLICIES
from perphd.domain.policy import Policy, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import available, value_or
from perphd.domain.workload import Kind
from tools.bench.policies.peers.koordinator import KoordinatorPolicy
from tools.bench.policies.peers.parties import PartiesPolicy

KEPT_SHARE = 0.9
"""Share of the undisturbed rate that a policy with absolute targets must keep, equal to perphd's tolerance of 10 %."""
_BATCH_CORES = 0.05
"""CPU use above which batch counts as running."""


class Told:
    """Gives a policy that needs absolute targets each LRA's median rate from before batch arrived.

    Without batch the policy has nothing to divide, and is not called.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._alone: dict[str, list[float]] = {}
        self._batch_came = False

    @property
    def name(self) -> str:
        """The policy's."""
        return self._policy.name

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Learn while batch is absent, then call the policy."""
        used = (
            v.sample.cpu_usage_cores for v in snapshot.workloads if v.spec.kind is Kind.BATCH and v.sample
        )
        self._batch_came = self._batch_came or any(value_or(cores, 0.0) > _BATCH_CORES for cores in used)
        if not self._batch_came:
            for view in snapshot.workloads:
                if view.sample is not None and available(view.sample.work_rate_per_s):
                    self._alone.setdefault(view.spec.name, []).append(view.sample.work_rate_per_s)
            return TargetState({}, memory=snapshot.memory)
        told = replace(snapshot, workloads=tuple(self._told(view) for view in snapshot.workloads))
        return self._policy.decide(told)

    def _told(self, view: WorkloadView) -> WorkloadView:
        rates = self._alone.get(view.spec.name)
        if not rates or view.spec.kind is not Kind.LRA:
            return view
        least = KEPT_SHARE * statistics.median(rates)
        objective = replace(view.spec.objective, min_work_rate_per_s=least)
        return replace(view, spec=replace(view.spec, objective=objective))


PEERS: dict[str, Callable[[], Policy]] = {
    "koordinator": KoordinatorPolicy,
    "parties": lambda: Told(PartiesPolicy()),
}


def install(name: str) -> None:
    """Let a daemon that this process starts with the policy ``none`` decide as ``name`` does."""
    POLICIES["none"] = lambda _: PEERS[name]()
