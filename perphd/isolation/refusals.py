"""Values that the kernel did not take: which of them are not tried again, and when the others are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import KEEP
from perphd.domain.errors import Broken, Busy, Full, KernelError
from perphd.domain.plan import ChangeSet, Key, NotEnforceable
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import Value
from perphd.isolation.watch import LONGEST_WAIT_S, longer_s

TRIES_AT_ONCE: Final = 3
"""So many failures in a row of a value that the kernel might take later; from then on it waits between tries."""
KEPT: Final = 32
"""So many refused values are remembered for one knob; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """``wait_s``: so long after ``at_s`` it is not tried again; 0: at once, infinite: never."""

    failures: int
    at_s: float
    wait_s: float
    reason: str

    def waits(self, now_s: float) -> bool:
        return math.isinf(self.wait_s) or 0 <= now_s - self.at_s < self.wait_s

    def __str__(self) -> str:
        again = "" if math.isinf(self.wait_s) else f"tried again after {self.wait_s:g} s: "
        return f"{again}{self.reason}"


class Refusals:
    """Remembers each refused target of a knob by itself; a target of KEEP, which gives back, is never refused for good.

    What is wrong in principle is not tried again. What the kernel might take later is tried a few times at once, then
    ever more rarely. Since a failing write takes all others of its transaction back, those that have failed often are
    tried one at a time, with a pause that grows for all of them together, until one succeeds: many at once have as a
    rule one cause (systemd does not answer), and the rest of the host is not to wait for each of them.
    """

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Value, _Refusal]] = {}
        self._pause_s = 0.0
        self._paused_s = 0.0
        self._retried: frozenset[Key] = frozenset()

    def why_not(self, key: Key, target: Value, now_s: float) -> str:
        """Why this target is not tried now, or empty."""
        refusal = self._of(key, target)
        return str(refusal) if refusal is not None and refusal.waits(now_s) else ""

    def hold(
        self, changes: ChangeSet, planned: Mapping[Key, tuple[Knob, Value]], now_s: float
    ) -> tuple[ChangeSet, tuple[NotEnforceable, ...]]:
        """Without the knobs that are not tried now, and these. ``planned``: the targets; others are let through."""
        keys = dict.fromkeys(write.key for write in changes.writes)
        held: dict[Key, str] = {}
        due: dict[Key, _Refusal] = {}
        for key in keys:
            refusal = self._of(key, planned[key][1]) if key in planned else None
            if refusal is None or refusal.wait_s == 0:
                continue
            if refusal.waits(now_s):
                held[key] = str(refusal)
            else:
                due[key] = refusal
        held |= self._one_at_a_time(due, now_s)
        self._retried = frozenset(due.keys() - held.keys())
        told = tuple(
            NotEnforceable(*key, f"not given back, {why}" if planned[key][1] is KEEP else why)
            for key, why in held.items()
        )
        return changes.without(told), told

    def _one_at_a_time(self, due: Mapping[Key, _Refusal], now_s: float) -> dict[Key, str]:
        """Which of these, that have waited long enough by themselves, wait all the same."""
        if not due or not self._pause_s:
            return {}
        turn = (
            () if 0 <= now_s - self._paused_s < self._pause_s else (min(due, key=lambda key: due[key].at_s),)
        )
        why = f"tried again within {LONGEST_WAIT_S:g} s of others like it, which fail as well"
        return {key: f"{why}: {refusal.reason}" for key, refusal in due.items() if key not in turn}

    def _of(self, key: Key, target: Value) -> _Refusal | None:
        return self._by_key.get(key, {}).get(target)

    def failed(self, key: Key, target: Value, error: KernelError, now_s: float) -> None:
        """The kernel did not take this target."""
        refusals = self._by_key.setdefault(key, {})
        before = refusals.pop(target, None)
        failures = 1 if before is None else before.failures + 1
        may_pass = isinstance(error, Busy | Full | Broken)
        if may_pass and failures < TRIES_AT_ONCE:
            wait_s = 0.0
        elif may_pass or target is KEEP:
            wait_s = longer_s(0.0 if before is None else before.wait_s)
        else:
            wait_s = math.inf
        refusals[target] = _Refusal(failures, now_s, wait_s, str(error))
        if len(refusals) > KEPT:
            del refusals[next(iter(refusals))]
        if key in self._retried and not (
            self._pause_s and self._paused_s == now_s
        ):  # once for all of one try
            self._pause_s, self._paused_s = longer_s(self._pause_s), now_s

    def took(self, key: Key, target: Value) -> None:
        """The kernel took this target."""
        self._by_key.get(key, {}).pop(target, None)

    def succeeded(self, keys: Iterable[Key], planned: Mapping[Key, tuple[Knob, Value]]) -> None:
        """The kernel took what was planned for these knobs."""
        for key in keys:
            if key in planned:
                self._by_key.get(key, {}).pop(planned[key][1], None)
            if key in self._retried:
                self._pause_s = 0.0

    def reset(self, workload: str | None = None) -> None:
        """Forget them, of one workload or of all: everything is tried again at once."""
        self._pause_s = 0.0
        for key in [key for key in self._by_key if workload in (None, key[0])]:
            del self._by_key[key]
