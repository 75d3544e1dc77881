"""Determines who takes the resource that an LRA lacks: batch, undeclared work, the hypervisor, or the LRA itself.

Problem: the host is full and an LRA waits. Restricting batch helps only if batch fills the host. Calling every other
cause "remote" would send operators to examine the network.

Approach: the host account shows who uses the CPUs. On a host filled by others, a latency increase counts as caused
elsewhere only if waiting for CPUs cannot explain it, even if all of the waiting falls on the slowest requests:
    waiting      w = run-queue delay + usage x steal / (1 - steal)           threads that wait for a CPU
    queues       w / (1 - p),  p = run-queue delay / (run-queue delay + usage)   with the requests behind them
    explained    w / (1 - p) / share / extra     share: part of the requests at or above the judged percentile
                                                 extra: additional requests in flight (Little's law)

An application that does not keep up with its load works off a backlog, for which any amount of waiting may be the
cause. The same holds for an application that serves several requests each time that it is scheduled: the requests came
together, and each wait delayed all of them. The median latency, if known, is more informative. A cause that raises it
affects every request, while waiting raises it only in proportion to the total waiting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.detector.cause import Ledger, Surroundings, cause
from perphd.admission.detector.storage import storage
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import HostAccount
from perphd.domain.policy import ResPerfModel
from perphd.domain.reading import Unavailable, available, value_or
from perphd.domain.sample import Sample
from perphd.domain.signals import Performance

FULL_SHARE: Final = 0.85
"""Busy share of the host's CPUs from which an LRA may have to wait for one."""
OTHERS_SHARE: Final = 0.1
"""Share of the CPUs used by undeclared work and the hypervisor from which they contend with the LRA."""
STOLEN_SHARE: Final = 0.05
"""Share of the CPUs taken by the hypervisor from which it can be the cause."""
GIVING_SHARE: Final = 0.05
"""Share of the CPUs that batch must use for a restriction of batch to help."""
SATURATED: Final = 0.9
"""Share of waiting in the time of a unit of work above which the median latency reveals little."""
KEEPS_UP: Final = 0.9
"""Ratio of work done to work arriving below which an application builds up a backlog; above the inverse, it
works one off.
"""
OCCUPIED: Final = 0.8
"""Mean number of running and waiting threads above which a single thread may be the bottleneck."""
BATCHED: Final = 1.5
"""Ratio of requests to context switches of the LRA's threads above which requests come in bursts."""
MOST_WAITING: Final = 0.95
MEDIAN_SHARE: Final = 0.5
_CLEAR_STALL: Final = 0.5  # extra stalled threads from which the stall is real, whatever else grew
_TAKES_CPU: Final = frozenset({Cause.CPU, Cause.SMT, Cause.LLC, Cause.MBW, Cause.UNKNOWN, Cause.NONE})
"""Causes that a CPU user may have produced."""


_NOTHING_TO_GIVE: Final = {
    Cause.NETWORK: "the network is full: taking CPU, cache or memory from batch would not help",
    Cause.STORAGE: "its storage is slow, and batch hardly uses it: taking resources from batch would not help",
    Cause.THROTTLED: "its own CPU limit throttles it: raise cpu.max; restricting batch would not help",
    Cause.REMOTE: "no resource of this host explains it: the cause is elsewhere, so the LRA gets no resources",
}
_OTHERS_DOING: Final = {
    Cause.NEIGHBOUR: "undeclared work uses the CPUs, and batch almost none: restricting batch would not help",
    Cause.HYPERVISOR: "the hypervisor takes the CPU time, and batch uses almost none: restricting batch would not help",
    Cause.SELF: "its load exceeds this host, and batch uses almost nothing",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Shares (0 to 1) of the host's CPUs by user."""

    busy: float
    lras: float
    batch: float
    undeclared: float
    steal: float

    @property
    def by_others(self) -> float:
        """Share used by undeclared work and the hypervisor."""
        return self.undeclared + self.steal

    @property
    def is_contended(self) -> bool:
        """True if undeclared work or the hypervisor fill the host."""
        return self.busy >= FULL_SHARE and self.by_others >= OTHERS_SHARE


def taken(account: HostAccount | None) -> Taken | None:
    """Shares of the host's CPUs; None if unknown."""
    if account is None or account.cpu.capacity <= 0.0:
        return None
    cpu, whole = account.cpu, account.cpu.capacity
    return Taken(
        1.0 - cpu.idle / whole, cpu.lras / whole, cpu.batch / whole, cpu.undeclared / whole, cpu.steal / whole
    )


def is_contended(account: HostAccount | None) -> bool:
    """True if undeclared work or the hypervisor fill the host; False if unknown."""
    shares = taken(account)
    return shares is not None and shares.is_contended


def is_shared(account: HostAccount | None) -> bool:
    """True if undeclared work uses so much CPU that no core is exclusive."""
    shares = taken(account)
    return shares is not None and shares.undeclared >= OTHERS_SHARE


def waiting_explains(
    sample: Sample, perf: Performance, model: ResPerfModel, shares: Taken, share: float
) -> float:
    """Largest share of an extra latency that waiting for CPUs can explain; infinite if unknown.

    Args:
        sample: the LRA's sample.
        perf: its work and delay.
        model: the model with its usual delay.
        shares: use of the host's CPUs.
        share: share of requests at or above the judged percentile.
    """
    usual = model.reference(f"delay:{perf.delay_source}", perf.load)
    if (
        not (available(sample.run_delay_cores) and available(perf.work) and available(perf.delay))
        or not usual
    ):
        return math.inf
    used, steal = value_or(sample.cpu_usage_cores, 0.0), min(shares.steal, MOST_WAITING)
    waiting = sample.run_delay_cores + used * steal / (1.0 - steal)
    keeps_up = KEEPS_UP * perf.load <= perf.work <= perf.load / KEEPS_UP if available(perf.load) else True
    extra = perf.work * (perf.delay - usual.value) / 1000.0
    scheduled = value_or(sample.context_switches_per_s, math.inf)
    if (not keeps_up and waiting + used >= OCCUPIED) or extra <= 0.0 or perf.work > BATCHED * scheduled:
        return math.inf
    waits = min(waiting / max(waiting + used, 1e-9), MOST_WAITING)
    waiting /= 1.0 - waits
    explained = waiting / share / extra
    median = sample.latency_p50_ms
    if waits < SATURATED and available(median):
        everybody = perf.work * (median - usual.value) / 1000.0
        if everybody > 0.0:
            explained = min(explained, waiting / MEDIAN_SHARE / everybody)
    return explained


def origin(found: Cause, sample: Sample, account: HostAccount | None, evidence: list[Evidence]) -> Cause:
    """The cause, refined by the user of the CPUs: NEIGHBOUR, HYPERVISOR, SELF, or ``found`` unchanged.

    Args:
        found: the contended resource.
        sample: the LRA's sample.
        account: the host account.
        evidence: receives evidence for the result.
    """
    shares = taken(account)
    if shares is None or account is None or found not in _TAKES_CPU:
        return found
    if shares.steal >= STOLEN_SHARE and shares.steal >= max(shares.undeclared, shares.batch):
        text = "of the host's CPUs, taken by the hypervisor"
        evidence.append(Evidence("steal", 100.0 * shares.steal, 0.0, "%", text))
        return Cause.HYPERVISOR
    if shares.busy < FULL_SHARE and found in (Cause.UNKNOWN, Cause.NONE):
        return found
    if shares.undeclared >= max(OTHERS_SHARE, shares.batch):
        text = f"of {account.cpu.capacity:g} CPUs used by undeclared work"
        evidence.append(Evidence("undeclared", account.cpu.undeclared, Unavailable(""), "CPUs", text))
        return Cause.NEIGHBOUR
    if found is Cause.CPU and shares.busy >= FULL_SHARE and shares.lras >= FULL_SHARE * shares.busy:
        own = value_or(sample.cpu_usage_cores, 0.0) / account.cpu.capacity
        if own >= FULL_SHARE * shares.lras and shares.batch < GIVING_SHARE:
            text = f"of {account.cpu.capacity:g} CPUs used by the LRA itself: its load exceeds the host"
            evidence.append(Evidence("own load", own * account.cpu.capacity, Unavailable(""), "CPUs", text))
            return Cause.SELF
    return found


def _made_elsewhere(
    extra: Ledger,
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
) -> bool:
    """True if latency grew by more than the threads' waiting and running can explain, whichever requests they
    affect.

    On a host filled by others, all waiting counts, not only the excess over the usual, because the usual
    waiting was not undisturbed.
    """
    if not extra.is_known:
        return False
    if max(extra.memory, extra.disk) >= _CLEAR_STALL:  # False for NaN
        return False
    shares = taken(around.account)
    if shares is not None and shares.is_contended:
        most = waiting_explains(sample, perf, model, shares, extra.share) if extra.delay > 0.0 else math.inf
        return 100.0 * most < settings.unexplained_pct
    return 100.0 * extra.explained < settings.unexplained_pct  # False for NaN


def found_cause(
    extra: Ledger,
    hierarchy: Cause,
    witness: Cause,
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    evidence: list[Evidence],
) -> Cause:
    """The contended resource (else ``witness``, which the signals indicate), refined by who takes it."""
    if _made_elsewhere(extra, sample, perf, model, around, settings):
        return _elsewhere(extra, around, settings, evidence)
    found = storage(
        cause(extra, hierarchy, sample, around, settings, evidence), sample, around.account, evidence
    )
    return origin(found if found is not Cause.UNKNOWN else witness, sample, around.account, evidence)


def _elsewhere(
    extra: Ledger, around: Surroundings, settings: PolicySettings, evidence: list[Evidence]
) -> Cause:
    """NETWORK if a link is full, else REMOTE."""
    full = around.network_pct
    if available(full) and full >= settings.network_full_pct:
        text = "its latency grew while a link is full; processors, memory and disks do not explain it"
        evidence.append(Evidence("network_pct", full, settings.network_full_pct, "%", text))
        return Cause.NETWORK
    text = "largest share of its extra latency that this host's resources can explain"
    evidence.append(Evidence("explained here", 100.0 * extra.explained, 100.0, "%", text))
    return Cause.REMOTE


def nothing_to_give(found: Cause, account: HostAccount | None = None) -> str:
    """Reason why restricting batch would not help against this cause; empty if it might.

    ``account``: the host account. Even if others are the cause, restricting batch may help if it uses the CPUs too.
    """
    shares = taken(account)
    if found in _OTHERS_DOING and shares is not None and shares.batch < GIVING_SHARE:
        return _OTHERS_DOING[found]
    return _NOTHING_TO_GIVE.get(found, "")
