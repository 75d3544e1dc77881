"""Incidents that perphd reports to other systems: their beginning, their end, and the rate limit of notices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from perphd.domain.decision import Decision

HOUR_S: Final = 3600.0


class IncidentKind(StrEnum):
    """Kinds of incidents."""

    DEGRADED = "degraded"  # an LRA misses its target
    UNREACHABLE = "unreachable"  # no setting is predicted to meet an LRA's target
    PAUSE = "pause"  # perphd is paused, for a workload or for all
    CONFLICT = "conflict"  # another program changes a setting as well
    SLI_LOST = "sli-lost"  # the source of an LRA's indicators does not answer


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition that is wrong at present.

    ``workload``: empty if the condition concerns the whole host. ``about`` distinguishes conditions of the same
    kind and workload.
    """

    kind: IncidentKind
    workload: str
    text: str
    about: str = ""
    decision: Decision | None = None

    @property
    def key(self) -> tuple[IncidentKind, str, str]:
        """Identity of the condition, independent of its text."""
        return self.kind, self.workload, self.about


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice that a condition began or, if ``began`` is False, ended.

    ``since_s``: when the condition was first seen. ``left_out``: number of notices that the rate limit has
    suppressed since the last notice.
    """

    condition: Condition
    began: bool
    since_s: float
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class NoticeRule:
    """Selection and rate limit of notices.

    Conditions of these ``kinds`` are reported after ``after_s``. ``pause_s``: minimum time between two
    notices about the same condition. ``most_per_h``: limit for all notices together.
    """

    kinds: frozenset[IncidentKind]
    after_s: float = 60.0
    pause_s: float = 900.0
    most_per_h: int = 20


@dataclass(slots=True)
class _Known:
    condition: Condition
    since_s: float
    told: bool = False


@dataclass(slots=True)
class NoticeFilter:
    """Turns the current conditions into notices for one receiver. The caller supplies the time."""

    rule: NoticeRule
    _known: dict[tuple[IncidentKind, str, str], _Known] = field(default_factory=dict)
    _told_s: dict[tuple[IncidentKind, str, str], float] = field(default_factory=dict)
    _sent_s: deque[float] = field(default_factory=deque)
    _left_out: int = 0

    def look(self, now_s: float, conditions: Iterable[Condition]) -> tuple[Notice, ...]:
        """The notices that are due, given all current conditions.

        The end of a condition is reported if and only if its beginning was reported. The rate limit does not apply to
        ends, so a receiver can close every incident that it opened.
        """
        now = {c.key: c for c in conditions if c.kind in self.rule.kinds}
        notices = [*self._ended(now_s, now)]
        for key, condition in now.items():
            known = self._known.setdefault(key, _Known(condition, now_s))
            known.condition = condition
            if known.told or now_s - known.since_s < self.rule.after_s or not self._may_tell(now_s, key):
                continue
            known.told = True
            self._told_s[key] = now_s
            self._sent_s.append(now_s)
            notices.append(Notice(condition, True, known.since_s, self._left_out))
            self._left_out = 0
        return tuple(notices)

    def _ended(self, now_s: float, now: Mapping[tuple[IncidentKind, str, str], Condition]) -> list[Notice]:
        ended = []
        for key in self._known.keys() - now.keys():
            known = self._known.pop(key)
            if known.told:
                ended.append(Notice(replace(known.condition, decision=None), False, known.since_s))
        for key in [k for k, at_s in self._told_s.items() if now_s - at_s >= self.rule.pause_s]:
            if key not in now:
                del self._told_s[key]
        return sorted(ended, key=lambda notice: notice.since_s)

    def _may_tell(self, now_s: float, key: tuple[IncidentKind, str, str]) -> bool:
        while self._sent_s and now_s - self._sent_s[0] >= HOUR_S:
            self._sent_s.popleft()
        told_s = self._told_s.get(key)
        if told_s is not None and now_s - told_s < self.rule.pause_s:
            return False
        if len(self._sent_s) < self.rule.most_per_h:
            return True
        if key not in self._told_s:
            # Treated as reported from now on, so that left_out counts a suppressed notice once and not at every call.
            self._told_s[key] = now_s
            self._left_out += 1
        return False
