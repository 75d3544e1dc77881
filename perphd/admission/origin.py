"""Who takes what an LRA lacks: batch, work that nobody declared, the hypervisor, or the LRA itself.

Problem: the host is full and an LRA waits. Taking from batch helps only if batch is what fills the host; calling
whatever is not batch's doing "remote" sends people to look at the network. Approach: the account of the host says who
uses its CPUs. On a host that others fill, a slow answer counts as made elsewhere only if all the waiting of the LRA's
threads could not have made it:

    waiting threads       w = run-queue delay + usage x steal / (1 - steal)
    with queues behind    w / (1 - p),  p: run-queue delay / (run-queue delay + usage), of the time that work takes
    of requests beyond    the percentile that is judged, w / share of requests at or above it
    could explain         w / (1 - p) / share  of the extra requests in flight (Little's law)

An application that falls behind what it is asked works off a backlog, of which waiting may be the cause at any length.
The median tells more where it is known: a median beyond the usual tail was made by something that falls on every
request, and waiting falls on every request only as far as there is waiting for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.cause import Ledger, Surroundings, cause
from perphd.admission.settings import PolicySettings
from perphd.admission.storage import storage
from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import HostAccount
from perphd.domain.policy import ResPerfModel
from perphd.domain.reading import Unavailable, available, value_or
from perphd.domain.sample import Sample
from perphd.domain.signals import Performance

FULL_SHARE: Final = 0.85
"""Busy share of the host's CPUs from which an LRA may have to wait for one."""
OTHERS_SHARE: Final = 0.1
"""Share of the CPUs that undeclared work and the hypervisor must take for the host to count as contended by them."""
STOLEN_SHARE: Final = 0.05
"""Share of the CPUs that the hypervisor must take to be a cause."""
GIVING_SHARE: Final = 0.05
"""Batch that uses less of the CPUs has nothing to give that would help."""
SATURATED: Final = 0.9
"""Share of the time that its work takes spent waiting from which the median says little."""
KEEPS_UP: Final = 0.9
"""An application that gets less done than this share of what it is asked, or so much more, has a backlog."""
OCCUPIED: Final = 0.8
"""Threads that run or wait for a CPU from which one of them may be the bottleneck."""
MOST_WAITING: Final = 0.95
MEDIAN_SHARE: Final = 0.5
_CLEAR_STALL: Final = 0.5  # extra threads that stall: from here on the stall is real, whatever else grew
_TAKES_CPU: Final = frozenset({Cause.CPU, Cause.SMT, Cause.LLC, Cause.MBW, Cause.UNKNOWN, Cause.NONE})
"""Causes that somebody who uses CPUs may have made."""


_NOTHING_TO_GIVE: Final = {
    Cause.NETWORK: "the network is full: no CPU, cache or memory of batch's would help",
    Cause.STORAGE: "its storage is slow, and batch hardly uses it: no CPU, cache or memory of batch's would help",
    Cause.THROTTLED: "its own CPU limit holds it back: nothing of batch's would help, raising cpu.max would",
    Cause.REMOTE: "no resource of this host explains it: what it waits for is slower elsewhere, and nothing is given",
}
_OTHERS_DOING: Final = {
    Cause.NEIGHBOUR: "undeclared work uses the CPUs, and batch next to none: taking more from batch would not help",
    Cause.HYPERVISOR: "the hypervisor takes the CPU time, and batch next to none: nothing of batch's would help",
    Cause.SELF: "it is asked for more than this host can do, and batch uses next to nothing",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Shares (0 to 1) of the host's CPUs."""

    busy: float
    lras: float
    batch: float
    undeclared: float
    steal: float

    @property
    def by_others(self) -> float:
        """What neither LRAs nor batch have."""
        return self.undeclared + self.steal

    @property
    def is_contended(self) -> bool:
        """True if undeclared work or the hypervisor fill the host."""
        return self.busy >= FULL_SHARE and self.by_others >= OTHERS_SHARE


def taken(account: HostAccount | None) -> Taken | None:
    """Who has how much of the host's CPUs; None where that is not known."""
    if account is None or account.cpu.capacity <= 0.0:
        return None
    cpu, whole = account.cpu, account.cpu.capacity
    return Taken(
        1.0 - cpu.idle / whole, cpu.lras / whole, cpu.batch / whole, cpu.undeclared / whole, cpu.steal / whole
    )


def is_contended(account: HostAccount | None) -> bool:
    """True if undeclared work or the hypervisor fill the host; False where nothing is known."""
    shares = taken(account)
    return shares is not None and shares.is_contended


def is_shared(account: HostAccount | None) -> bool:
    """True if undeclared work uses so much that no core can be called exclusive."""
    shares = taken(account)
    return shares is not None and shares.undeclared >= OTHERS_SHARE


def waiting_explains(
    sample: Sample, perf: Performance, model: ResPerfModel, shares: Taken, share: float
) -> float:
    """The greatest part of an extra latency that waiting for CPUs can have made; inf where that cannot be told.

    Args:
        sample: of the LRA.
        perf: its work and delay.
        model: knows its usual delay.
        shares: who has the host's CPUs.
        share: of the requests, at or above the percentile that is judged.
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
    if (not keeps_up and waiting + used >= OCCUPIED) or extra <= 0.0:
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
    """The cause once it is known who takes the CPUs: NEIGHBOUR, HYPERVISOR and SELF are told apart from batch's doing.

    Args:
        found: the contended resource.
        sample: of the LRA.
        account: of the host.
        evidence: what speaks for the answer is added.
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
        text = f"of {account.cpu.capacity:g} CPUs used by work that nobody declared"
        evidence.append(Evidence("undeclared", account.cpu.undeclared, Unavailable(""), "CPUs", text))
        return Cause.NEIGHBOUR
    if found is Cause.CPU and shares.busy >= FULL_SHARE and shares.lras >= FULL_SHARE * shares.busy:
        own = value_or(sample.cpu_usage_cores, 0.0) / account.cpu.capacity
        if own >= FULL_SHARE * shares.lras and shares.batch < GIVING_SHARE:
            text = (
                f"of {account.cpu.capacity:g} CPUs used by itself: it is asked for more than the host can do"
            )
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
    """True if latency grew and what its threads wait and run longer could not make that, wherever it fell.

    On a host that others fill, all waiting counts and not only more than usual: what is usual there was never quiet.
    """
    if not extra.is_known:
        return False
    if max(extra.memory, extra.disk) >= _CLEAR_STALL:  # NaN compares as False
        return False
    shares = taken(around.account)
    if shares is not None and shares.is_contended:
        most = waiting_explains(sample, perf, model, shares, extra.share) if extra.delay > 0.0 else math.inf
        return 100.0 * most < settings.unexplained_pct
    return 100.0 * extra.explained < settings.unexplained_pct  # NaN compares as False, too


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
    """What is contended, or what the signals that wait point to (``witness``), and whose doing it is."""
    if _made_elsewhere(extra, sample, perf, model, around, settings):
        return _elsewhere(extra, around, settings, evidence)
    found = storage(
        cause(extra, hierarchy, sample, around, settings, evidence), sample, around.account, evidence
    )
    return origin(found if found is not Cause.UNKNOWN else witness, sample, around.account, evidence)


def _elsewhere(
    extra: Ledger, around: Surroundings, settings: PolicySettings, evidence: list[Evidence]
) -> Cause:
    """NETWORK where a link is full, else REMOTE."""
    full = around.network_pct
    if available(full) and full >= settings.network_full_pct:
        text = "its latency grew with a full link; processors, memory and disks do not explain it"
        evidence.append(Evidence("network_pct", full, settings.network_full_pct, "%", text))
        return Cause.NETWORK
    text = "of its extra latency, at most: no resource of this host explains the rest"
    evidence.append(Evidence("explained here", 100.0 * extra.explained, 100.0, "%", text))
    return Cause.REMOTE


def nothing_to_give(found: Cause, account: HostAccount | None = None) -> str:
    """Why nothing that is taken from batch would cure this; empty if something might.

    ``account``: of the host; where others are the cause, batch may still have something to give.
    """
    shares = taken(account)
    if found in _OTHERS_DOING and shares is not None and shares.batch < GIVING_SHARE:
        return _OTHERS_DOING[found]
    return _NOTHING_TO_GIVE.get(found, "")
