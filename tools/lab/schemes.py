"""The compared schemes: ways to divide the host between the database and the batch job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from perphd.domain.cpuset import CpuSet
from tools.lab import groups as g
from tools.lab.groups import Groups


class Indicator(StrEnum):
    """The indicators by which perphd judges the application."""

    OWN = "own"  # the server's own source
    TCP = "tcp"  # the latency and rate of its TCP connections
    NONE = "none"  # only waiting for CPUs and CPU time, and hardware counters if available


ALONE, NATIVE = "alone", "native"
PERPHD, PERPHD_30 = "perphd", "perphd-30"


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to run both. ``prepare`` sets the groups, which are at their defaults, before the load starts.

    ``policy``: the daemon runs with this published policy of tools/bench in place of its own. ``on_request``: it runs
    only if it is named.
    """

    name: str
    text: str
    prepare: Callable[[Groups], None] = lambda groups: None
    with_batch: bool = True
    one_group: bool = False
    daemon: bool = False
    policy: str = ""
    tolerance_pct: float = 10.0
    indicator: Indicator = Indicator.OWN
    on_request: bool = False

    @property
    def lra_group(self) -> str:
        """The group in which the database runs."""
        return g.NATIVE if self.one_group else g.LRA

    @property
    def batch_group(self) -> str:
        """The group in which the batch job runs."""
        return g.NATIVE if self.one_group else g.BATCH


def halves(cpus: str) -> tuple[str, str]:
    """The CPUs, given in the kernel's list format, in two halves; the first gets the odd one."""
    numbers = list(CpuSet.parse(cpus))
    cut = (len(numbers) + 1) // 2
    return str(CpuSet.of(numbers[:cut])), str(CpuSet.of(numbers[cut:]))


def _split(groups: Groups) -> None:
    first, second = halves(groups.all_cpus())
    groups.set_cpus(g.LRA, first)
    groups.set_cpus(g.BATCH, second)


def _shares(batch: int) -> Callable[[Groups], None]:
    return lambda groups: groups.set_shares(g.BATCH, batch)


def _idle(groups: Groups) -> None:
    groups.set_idle(g.BATCH, True)


def _confined(groups: Groups) -> None:
    _, second = halves(groups.all_cpus())
    groups.set_cpus(g.BATCH, second)
    groups.set_idle(g.BATCH, True)


SCHEMES = (
    Scheme(ALONE, "the database without batch", with_batch=False),
    Scheme(NATIVE, "no control: both in one group, like processes without isolation", one_group=True),
    Scheme("sbs-1024", "CPU-SBS, equal shares: two groups, 1024:1024", _shares(1024)),
    Scheme("sbs-64", "CPU-SBS, unequal shares: two groups, 1024:64", _shares(64), on_request=True),
    # The best known static setting for open loops.
    Scheme("idle", "batch in the kernel's idle class on all CPUs, from its start", _idle, on_request=True),
    Scheme("confined", "batch in the idle class on half of the CPUs, from its start", _confined, on_request=True),
    Scheme("static", "static cpusets: half of the CPUs each, exclusively", _split),
    Scheme(
        PERPHD, "perphd in enforce mode, started after the load, from two groups at defaults", daemon=True
    ),
    Scheme(
        PERPHD_30,
        "the same with an objective that leaves more to batch: tolerance_pct = 30 instead of 10",
        daemon=True,
        tolerance_pct=30.0,
    ),
    Scheme("perphd-tcp", 'perphd with source = "tcp" in place of the server\'s own source', daemon=True,
           indicator=Indicator.TCP, on_request=True),
    Scheme("perphd-blind", "perphd without an indicator", daemon=True, indicator=Indicator.NONE, on_request=True),
    Scheme("koordinator", "Koordinator's CPU suppression as the policy of the same daemon", daemon=True,
           policy="koordinator", on_request=True),
    Scheme("parties", "PARTIES as the policy of the same daemon, told to keep 0.9 of the rate before batch came",
           daemon=True, policy="parties", on_request=True),
)  # fmt: skip

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}


def is_perphd(name: str) -> bool:
    """True for the schemes in which the daemon runs with its own policy."""
    return name in BY_NAME and BY_NAME[name].daemon and not BY_NAME[name].policy


def sli(scheme: Scheme, own: str) -> str:
    """The indicator's keys in the configuration; ``own``: those of the server's own source."""
    return {Indicator.OWN: own, Indicator.TCP: 'source = "tcp"\n', Indicator.NONE: ""}[scheme.indicator]


def tolerance_pct(name: str) -> float:
    """The accepted loss of work by which a scheme is judged; 10 % for schemes without an objective."""
    return BY_NAME[name].tolerance_pct if name in BY_NAME else 10.0
