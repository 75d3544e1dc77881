"""How often one knob may change: enough for every rescue, not enough for a loop that swings to and fro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.plan import ChangeSet, Key, NotEnforceable

BURST: Final = 20
"""So many changes of one knob are free at first, and again after a quiet time."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class Allowance:
    """One bucket of changes a knob. ``per_s``: how fast it fills again."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._buckets: dict[Key, _Bucket] = {}

    def hold(self, changes: ChangeSet, targets: Mapping[str, Settings], now_s: float) -> ChangeSet:
        """Without the knobs that have changed too often. One that is to be given back never waits.

        The same knob of all workloads waits together: what one is to lose is what another is to gain.
        """
        keys = dict.fromkeys(write.key for write in changes.writes)
        wanted = [key for key in keys if getattr(targets.get(key[0], UNTOUCHED), key[1]) is not KEEP]
        waits = {key[1]: why for key in wanted if (why := self.wait(key, now_s))}
        held = {key: waits[key[1]] for key in wanted if key[1] in waits}
        return changes.without([NotEnforceable(*key, why) for key, why in held.items()])

    def wait(self, key: Key, now_s: float) -> str:
        """Why this knob is not changed now, or empty."""
        if self._left(key, now_s) >= 1.0:
            return ""
        return f"changed {BURST} times in a short time; from now on at most {self._per_s:g} times a second"

    def changed(self, key: Key, now_s: float) -> None:
        """The knob is being changed."""
        self._buckets[key] = _Bucket(max(0.0, self._left(key, now_s) - 1.0), now_s)

    def forget(self, workload: str) -> None:
        """The workload is off the list: nothing is remembered of its knobs."""
        for key in [key for key in self._buckets if key[0] == workload]:
            del self._buckets[key]

    def _left(self, key: Key, now_s: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return float(BURST)
        return min(float(BURST), bucket.left + max(0.0, now_s - bucket.at_s) * self._per_s)
