"""Finds undeclared groups that should be declared as batch, with the predicted gain. Pure.

A group's record holds its CPU use and the seconds for which it was named as an LRA's antagonist. The gain is the
model's prediction for the LRA if the group's CPU use were that of demoted batch, relative to the LRA's performance
while the group was named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.admission.context import lras, model_context, total_cores
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import TROUBLED, Decision, Verdict
from perphd.domain.host_account import NO_GROUP, HostAccount
from perphd.domain.policy import Band, Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.signals import performance
from perphd.domain.suggestion import Gain, Suggestion, workload_name

MOST_GROUPS: Final = 64
MEMORY_S: Final = 6 * 3600.0
"""Time constant with which a group's record fades, in seconds."""
LEAST_SHARE: Final = 0.01
"""Share of the host's CPUs that a group must use to be suggested without having been named."""
LEAST_NAMED_S: Final = 1.0
_NO_MODEL: Final = Unavailable("this LRA's performance is not known yet")


@dataclass(frozen=True, slots=True)
class Slowed:
    """Performance of one LRA while a group was named: sums of seconds x log of work, and of delay."""

    seconds: float = 0.0
    log_work: float = 0.0
    log_delay: float = 0.0

    def faded(self, kept: float) -> Slowed:
        """The record after fading by the factor ``kept``."""
        return Slowed(self.seconds * kept, self.log_work * kept, self.log_delay * kept)

    def more(self, seconds: float, verdict: Verdict) -> Slowed:
        """The record after further seconds with this verdict."""
        work, delay = _seen(verdict, "work ("), _seen(verdict, "delay (")
        return Slowed(
            self.seconds + seconds, self.log_work + seconds * work, self.log_delay + seconds * delay
        )


def _seen(verdict: Verdict, signal: str) -> float:
    """Logarithm of a signal's observed value; NaN if the signal was not judged."""
    for item in verdict.evidence:
        if item.signal.startswith(signal) and available(item.observed) and item.observed > 0.0:
            return math.log(item.observed)
    return math.nan


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Record of one undeclared group.

    ``cpu_s``: its CPU seconds. ``slowed``: by LRA, the LRA's performance while the group was named.
    """

    cpu_s: float = 0.0
    slowed: Mapping[str, Slowed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UndeclaredRecord:
    """Fading record of undeclared groups over the last hours. ``seen_s``: seconds covered, faded as well."""

    seen_s: float = 0.0
    groups: Mapping[str, GroupRecord] = field(default_factory=dict)

    def after(self, account: HostAccount, decisions: tuple[Decision, ...]) -> UndeclaredRecord:
        """The record after one more tick."""
        dt_s = account.interval_s
        kept = max(0.0, 1.0 - dt_s / MEMORY_S)
        groups = {
            name: GroupRecord(known.cpu_s * kept, {n: s.faded(kept) for n, s in known.slowed.items()})
            for name, known in self.groups.items()
        }
        for item in account.undeclared:
            known = groups.get(item.group, GroupRecord())
            groups[item.group] = replace(known, cpu_s=known.cpu_s + item.cpu_cores * dt_s)
        for decision in decisions:
            culprit = decision.verdict.culprit
            if culprit is None or culprit not in groups or decision.verdict.health not in TROUBLED:
                continue
            slowed = dict(groups[culprit].slowed)
            slowed[decision.workload] = slowed.get(decision.workload, Slowed()).more(dt_s, decision.verdict)
            groups[culprit] = replace(groups[culprit], slowed=slowed)
        if len(groups) > MOST_GROUPS:
            most = sorted(groups, key=lambda name: -groups[name].cpu_s)[:MOST_GROUPS]
            groups = {name: groups[name] for name in most}
        return UndeclaredRecord(self.seen_s * kept + dt_s, groups)


def suggestions(snapshot: Snapshot, record: UndeclaredRecord) -> tuple[Suggestion, ...]:
    """Groups that should be declared. Those that were named as antagonists for longest come first."""
    found = []
    capacity = float(len(snapshot.host.topology.usable)) or 1.0
    for group, known in record.groups.items():
        cores = known.cpu_s / record.seen_s if record.seen_s > 0.0 else 0.0
        named = {lra: slowed for lra, slowed in known.slowed.items() if slowed.seconds >= LEAST_NAMED_S}
        if cores < LEAST_SHARE * capacity and not named:
            continue
        gains = tuple(
            _gain(snapshot, view, cores, named[view.spec.name])
            for view in lras(snapshot)
            if view.spec.name in named
        )
        found.append(
            Suggestion(group, cores, record.seen_s, gains, _config(group), _text(group, cores, gains))
        )
    found.sort(key=lambda s: (-sum(gain.named_s for gain in s.gains), -s.cpu_cores))
    return tuple(found)


def _gain(snapshot: Snapshot, view: WorkloadView, cores: float, slowed: Slowed) -> Gain:
    name, model, sample = view.spec.name, view.model, view.sample
    if model is None or sample is None:
        return Gain(name, slowed.seconds, _NO_MODEL, _NO_MODEL)
    perf = performance(sample, view.spec.objective.latency_percentile)
    total = total_cores(snapshot)
    as_is = model_context(snapshot, view, model)
    moved = min(cores, as_is.other_cores)
    batch_cores = min(as_is.batch_demand_cores + moved, float(total))
    declared = replace(as_is, other_cores=as_is.other_cores - moved, batch_demand_cores=batch_cores)
    demoted = Allocation(CpuGrant(total, total, IDLE))
    work, delay = model.predict_work([demoted], declared)[0], model.predict_delay([demoted], declared)[0]
    usual_work = model.reference(f"work:{perf.work_source}", perf.load)
    usual_delay = model.reference(f"delay:{perf.delay_source}", perf.load)
    return Gain(
        name,
        slowed.seconds,
        _ratio(work, usual_work, slowed.log_work / slowed.seconds),
        _ratio(delay, usual_delay, slowed.log_delay / slowed.seconds),
    )


def _ratio(predicted: Band, usual: Band | None, log_seen: float) -> Reading:
    if usual is None or math.isnan(log_seen):
        return _NO_MODEL
    return predicted.value * usual.value / math.exp(log_seen)


def _config(group: str) -> str:
    """Configuration table that declares the group; empty for processes in no group."""
    if group == NO_GROUP:
        return ""
    last = group.rpartition("/")[2]
    kind = last.rpartition(".")[2]
    where = f'cgroup = "{group}"'
    if kind == "service":
        where = f'match = "unit:{last}"'
    elif kind == "slice":
        where = f'match = "slice:{last}"'
    return f'[[batch]]\nname = "{workload_name(group)}"\n{where}\n'


def _text(group: str, cores: float, gains: tuple[Gain, ...]) -> str:
    if group == NO_GROUP:
        return (
            f"processes in no control group use {cores:.2g} CPUs: start them as a unit, for example with "
            "systemd-run, to declare them"
        )
    if not gains:
        return f"uses {cores:.2g} CPUs and has not been an antagonist so far"
    names = ", ".join(gain.lra for gain in gains)
    return f"uses {cores:.2g} CPUs and slowed {names}: declared as batch, it could be restricted"
