"""Data of a resctrl plan: its input, its working state and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import rdt
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.plan import Key, NotEnforceable, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS
from perphd.isolation.group_watch import SeenGroup
from perphd.isolation.pools import Pool, Want

KNOB: Final = "llc_masks"
"""Name of resctrl groups as a knob in the journal and in reports."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """A plan for resctrl groups, with its writes in the form that reports use.

    ``pending``: knobs that these writes set. ``waiting``: workloads whose writes wait for resctrl's lock.
    """

    writes: tuple[Write, ...] = ()
    skipped: tuple[NotEnforceable, ...] = ()
    limited: tuple[NotEnforceable, ...] = ()
    pending: tuple[Key, ...] = ()
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    """The control group of a workload's threads; ``shared``: other workloads use it too."""

    group: rdt.GroupRef
    shared: bool


@dataclass(slots=True)
class CacheLook:
    """State of the resctrl groups as read for one plan.

    ``shown``: schemata of any group, which lists the online domains. ``default``: the default group's schemata; None:
    not read yet.
    """

    groups: rdt.Groups
    seen: dict[str, SeenGroup]
    shown: rdt.Schemata
    threads: dict[str, frozenset[int]]
    default: rdt.Schemata | None = None

    def completed(self, wanted: rdt.Schemata) -> rdt.Schemata:
        """These values, and those of the default group where they name none.

        Threads had the default group's values before perphd moved them. Unlike full masks and bandwidth, these never
        overlap another program's exclusive group, nor exceed what an operator left to all threads.
        """
        if all(wanted.get(cell.resource, cell.domain) is not None for cell, _ in self.shown.cells()):
            return wanted
        if self.default is None:
            self.default = self.groups.resctrl.schemata()
        return self.default.present_in(self.shown)[0].merged(wanted)

    def foreign_groups(self) -> int:
        """Number of control groups that are not perphd's."""
        access = self.groups.resctrl.access
        names = [name for name in access.listdir() if self.groups.prefix.key(name) is None]
        return sum(access.exists(name, "tasks") for name in names)


@dataclass(slots=True)
class CacheDraft:
    """A plan under construction.

    ``locked``: reason why nothing can be changed while another program holds resctrl's lock; else empty.
    """

    look: CacheLook
    targets: Mapping[str, Settings]
    locked: str
    writes: list[Write]
    skipped: list[NotEnforceable]
    limited: list[NotEnforceable]
    pending: list[Key]
    waiting: set[str]

    def wait(self, name: str) -> None:
        """Record that this workload's settings wait for resctrl's lock."""
        self.skip(name, self.locked)
        self.waiting.add(name)

    def skip(self, name: str, reason: str, settings: Iterable[str] = RESCTRL_SETTINGS) -> None:
        """Record why these settings of the workload are not applied."""
        target = self.targets.get(name, UNTOUCHED)
        self.skipped += [
            NotEnforceable(name, each, reason) for each in settings if getattr(target, each) is not KEEP
        ]

    def say_shared(self, pool: Pool, spec: WorkloadSpec, want: Want) -> None:
        """Report that this workload shares a group, because CLOSIDs are short."""
        others = ", ".join(name for name in pool.names if name != spec.name)
        closids = self.look.groups.resctrl.info.usable_closids
        why = f"too few CLOSIDs ({closids} with the default group's): it shares a resctrl group with {others}"
        if want.schemata != pool.schemata:
            why += f", which has {pool.schemata} instead of {want.schemata}"
        self.limited.append(NotEnforceable(spec.name, KNOB, why))


def has_any(target: Settings) -> bool:
    """True if these settings want cache ways or memory bandwidth."""
    return any(getattr(target, setting) is not KEEP for setting in RESCTRL_SETTINGS)


def left_out(
    targets: Mapping[str, Settings], asked: Sequence[WorkloadSpec], reason: str
) -> Iterable[NotEnforceable]:
    """Yield every wanted setting of these workloads as not enforceable for this reason."""
    for spec in asked:
        for setting in RESCTRL_SETTINGS:
            if getattr(targets[spec.name], setting) is not KEEP:
                yield NotEnforceable(spec.name, setting, reason)
