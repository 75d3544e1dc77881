"""Records of a decision about several LRAs: donors, receivers, reasons and candidates."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition_cores import SharedCores
from perphd.admission.context import lras, total_cores
from perphd.admission.thresholds import LIKELY
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Candidate, Cause, Decision, Estimate, Health, Verdict
from perphd.domain.policy import Snapshot
from perphd.domain.reading import Unavailable

WEIGHED: Final = (
    "the model's prediction, weighed by its samples there against a queueing estimate; "
    "measured scores take precedence"
)
BY_QUEUE: Final = (
    "a queueing estimate and measured scores; the model knows no undisturbed performance to compare with yet"
)
"""Bases of the candidates' scores, with and without a prediction of the model."""
SAME_SCORE: Final = 0.005
"""Difference up to which a score counts as the model's own."""


@dataclass(slots=True)
class Draft:
    """The parts of a decision about one LRA, before it is recorded."""

    action: Action = Action.HOLD
    reason: str = "on target"
    candidates: tuple[Candidate, ...] = ()


def moved(draft: Draft, member: Member, count: int, left: int) -> Draft:
    """The draft with its change of cores. ``count``: the LRA's new number of cores; ``left``: batch's
    number of cores.
    """
    action = draft.action
    if action is Action.HOLD:
        action = Action.GROW if count > member.cores else Action.SHRINK
    text = f"{member.cores or 'no'} -> {count} cores of its own, batch has {left}: {draft.reason}"
    return Draft(action, text, draft.candidates)


def candidates(
    cores: SharedCores, look: Look, member: Member, count: int, chosen: Allocation
) -> tuple[Candidate, ...]:
    """The LRA's present and new numbers of own cores, their neighbours, and the fewest that are likely enough.

    Args:
        cores: the cores to divide.
        look: the LRA now.
        member: its state before this decision.
        count: its new number of cores.
        chosen: its new allocation.
    """
    asked = {member.cores, count - 1, count, count + 1, cores.fewest(look, member, LIKELY)}
    counts = sorted(n for n in asked if 1 <= n <= cores.total)
    held, found = look.view.protection, []
    for number, prediction in zip(counts, cores.predictions(look, counts), strict=True):
        allocation, verdict = chosen, "chosen"
        if number != count:
            left = max(0, chosen.cpu.batch_cores + count - number)
            allocation = replace(chosen, cpu=replace(chosen.cpu, batch_cores=left, own_cores=number))
            verdict = "considered"
            if number == member.cores:
                verdict = "in force"
                allocation = held if held is not None and held.cpu.own_cores == number else allocation
        score = cores.score_of(look, member, number)
        estimate: Estimate | None = Estimate(score, BY_QUEUE if prediction is None else WEIGHED)
        if prediction is not None and math.isclose(score, prediction.score, abs_tol=SAME_SCORE):
            estimate = None
        found.append(Candidate(allocation, prediction, float(number), verdict, estimate))
    return tuple(found)


def record(snapshot: Snapshot, look: Look, draft: Draft, chosen: Allocation) -> Decision:
    """The record of a decision about one LRA. The caller fills in the policy's name."""
    current = look.view.protection
    if current is None:
        current = _nothing(snapshot)
    return Decision(
        snapshot.at_s, look.name, look.judged.verdict, draft.action, look.target.work, look.target.delay,
        current, chosen, draft.candidates, draft.reason, "",
        target_provisional=look.target.has_provisional_value,
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
