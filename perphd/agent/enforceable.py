"""Checks which knobs can be set on each workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perphd.agent.hardware import HostHardware
from perphd.domain.plan import NotEnforceable
from perphd.domain.workload import WorkloadSpec
from perphd.isolation.executor import Executor

ENFORCEABLE_S = 60.0
"""Seconds between two checks of a workload's enforceable knobs. A (re)appearing cgroup is also checked at once."""
_RESCTRL_KNOBS = frozenset({"llc_masks", "mba_pct"})
_NO_KNOBS: frozenset[str] = frozenset()


@dataclass(slots=True)
class Enforceable:
    """The knobs that can be set on a workload, and those that cannot, with reasons.

    ``looked_s``: time of the check. ``present``: the workload's control group existed then.
    """

    knobs: frozenset[str]
    missing: tuple[NotEnforceable, ...]
    looked_s: float
    present: bool


class EnforceableKnobs:
    """Checks from time to time which knobs can be set, and which bounds resctrl's controls have."""

    def __init__(self, executor: Executor, hardware: HostHardware) -> None:
        self._executor, self._hardware = executor, hardware
        self._known: dict[str, Enforceable] = {}
        self._bounds_s = -math.inf

    def look(self, spec: WorkloadSpec, present: bool, now_s: float) -> frozenset[str]:
        """Names of the knobs that can be set on this workload; checked periodically, and when it (re)appears."""
        known = self._known.get(spec.name)
        if known is None or known.present != present or now_s - known.looked_s >= ENFORCEABLE_S:
            knobs, missing = self._executor.enforceable(spec, now_s)
            self._look_at_bounds(bool(knobs & _RESCTRL_KNOBS), now_s)
            # Each workload is checked when first seen, and then at staggered times, so that no tick
            # checks all of them.
            early_s = len(self._known) % ENFORCEABLE_S if known is None else 0.0
            known = Enforceable(knobs, missing, now_s - early_s, present)
            self._known[spec.name] = known
        return known.knobs

    def known(self, name: str) -> Enforceable | None:
        """The result of the last check of this workload."""
        return self._known.get(name)

    def knobs(self, name: str) -> frozenset[str]:
        """Names of the knobs that could be set on this workload at the last check; none if it was not checked."""
        known = self._known.get(name)
        return _NO_KNOBS if known is None else known.knobs

    def missing(self, name: str) -> tuple[NotEnforceable, ...]:
        """The knobs that could not be set on this workload at the last check, with reasons."""
        known = self._known.get(name)
        return () if known is None else known.missing

    def is_present(self, name: str) -> bool:
        """True if this workload's control group existed at the last check."""
        known = self._known.get(name)
        return known is not None and known.present

    def by_workload(self) -> Mapping[str, frozenset[str]]:
        """Names of the knobs that could be set, by workload."""
        return {name: each.knobs for name, each in self._known.items()}

    def forget(self, name: str) -> None:
        """Check this workload again in the next round."""
        self._known.pop(name, None)

    def clear(self) -> None:
        """Check every workload again in the next round."""
        self._known.clear()

    def _look_at_bounds(self, settable: bool, now_s: float) -> None:
        """Check the bounds of resctrl's controls from time to time."""
        if now_s - self._bounds_s >= ENFORCEABLE_S:
            self._bounds_s = now_s
            self._hardware.read_bounds(
                keep=settable
            )  # while resctrl's knobs can be set, finding no bounds is a temporary read failure
