"""Records of a decision about several LRAs: donors, receivers, reasons and candidates."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from perphd.admission.arbiter.member import Look, Member
from perphd.admission.context import lras, total_cores
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Candidate, Cause, Decision, Estimate, Health, Verdict
from perphd.domain.policy import Snapshot
from perphd.domain.reading import Unavailable

BY_BUSY_CORES: Final = "from the expected load of its cores and from experience, without a model"
"""Basis of the candidates' scores."""


@dataclass(slots=True)
class Draft:
    """The parts of a decision about one LRA, before it is recorded."""

    action: Action = Action.HOLD
    reason: str = "on target"
    candidates: tuple[Candidate, ...] = ()


def moved(draft: Draft, member: Member, count: int, left: int, candidates: tuple[Candidate, ...]) -> Draft:
    """The draft with its change of cores. ``count``: the LRA's new number of cores; ``left``: batch's
    number of cores.
    """
    action = draft.action
    if action is Action.HOLD:
        action = Action.GROW if count > member.cores else Action.SHRINK
    text = f"{member.cores or 'no'} -> {count} cores of its own, batch has {left}: {draft.reason}"
    return Draft(action, text, candidates)


def candidates(
    member: Member, count: int, total: int, cache: tuple[int, int], expected: Callable[[Member, int], float]
) -> tuple[Candidate, ...]:
    """The LRA's present and new numbers of cores and their neighbours, each with the expected score."""
    found = []
    for cores in sorted({member.cores, count, max(1, count - 1), count + 1} - {0}):
        grant = CpuGrant(total, max(0, total - cores), exclusive=True, own_cores=cores)
        verdict = "chosen" if cores == count else "in force" if cores == member.cores else "considered"
        estimate = Estimate(expected(member, cores), BY_BUSY_CORES)
        found.append(Candidate(Allocation(grant, 0, *cache), None, float(cores), verdict, estimate))
    return tuple(found)


def record(snapshot: Snapshot, look: Look, draft: Draft, chosen: Allocation) -> Decision:
    """The record of a decision about one LRA. The caller fills in the policy's name."""
    current = look.view.protection
    if current is None:
        current = _nothing(snapshot)
    return Decision(
        snapshot.at_s, look.name, look.judged.verdict, draft.action, look.target.work, look.target.delay,
        current, chosen, draft.candidates, draft.reason, "",
    )  # fmt: skip


def waiting(snapshot: Snapshot, here: Collection[str]) -> list[Decision]:
    """Decisions for declared LRAs that are not running."""
    nothing, unknown = _nothing(snapshot), Unavailable("not sampled")
    return [
        Decision(
            snapshot.at_s, v.spec.name, Verdict(Health.UNKNOWN, Cause.NONE, snapshot.at_s, ()), Action.RELEASE,
            unknown, unknown, v.protection or nothing, nothing, (),
            f"waiting for cgroup {v.spec.cgroup}: it does not exist", "",
        )
        for v in lras(snapshot)
        if v.spec.name not in here
    ]  # fmt: skip


def _nothing(snapshot: Snapshot) -> Allocation:
    total = total_cores(snapshot)
    return Allocation(CpuGrant(total, total))
