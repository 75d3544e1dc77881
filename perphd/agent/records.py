"""Records and announces what happens: recent decisions, the store, the event stream, problems."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from perphd.domain.decision import Action, Consequences, Decision, Outcome
from perphd.domain.event import Event, EventKind
from perphd.domain.host_account import HostAccount, mean_account
from perphd.domain.plan import ChangeSet, Write
from perphd.domain.sample import Sample
from perphd.domain.status import Change
from perphd.domain.workload import Mode
from perphd.monitor.store import Store

KEPT_DECISIONS = 256
"""Number of decisions kept in memory per LRA, for explanations."""
KEPT_MOVES = 64
"""Number of decisions with a change that are kept per LRA. They have their own list, because an LRA near its target
fills the list of all decisions within minutes.
"""
REPEAT_S = 60.0
"""Seconds after which an unchanged decision is stored again."""
HOST_S = 10.0
"""Seconds over which the host's account is averaged before it is stored."""
REMIND_S = 3600.0
"""Seconds after which a lasting problem is logged again."""
QUIET_S = 60.0
"""Seconds after which a decision in observe mode is logged again if it chose another allocation by the same action."""
KEPT_CHANGES = 32
"""Number of protection changes kept for the status."""
KEPT_LEFT = 64
"""Maximum number of problems of removed workloads to show, the newest first."""
QUEUED_EVENTS = 256
"""Number of events by which a slow subscriber may lag before it loses the oldest."""

log = logging.getLogger("perphd")


@dataclass(slots=True)
class _Last:
    decision: Decision
    stored_s: float


@dataclass(frozen=True, slots=True)
class _Change:
    """One transaction: the writes in words, the result, and the workloads concerned."""

    at_s: float
    writes: tuple[str, ...]
    result: str
    workloads: frozenset[str]


class Records:
    """Records every event once and passes it on: to memory, store, log and subscribers."""

    def __init__(self, store: Store | None, wall_clock: Callable[[], float]) -> None:
        self._store, self._wall_clock = store, wall_clock
        self._decisions: dict[str, deque[Decision]] = {}
        self._moves: dict[str, deque[Decision]] = {}
        self._last: dict[str, _Last] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._came: deque[Outcome] = deque(maxlen=KEPT_DECISIONS)
        self._changes: deque[_Change] = deque(maxlen=KEPT_DECISIONS)
        self._subscribers: set[asyncio.Queue[Event | None]] = set()
        self._problems: dict[str, str] = {}
        self._told: dict[str, float] = {}
        self._observed: dict[str, Decision] = {}
        self._would: dict[str, Decision] = {}
        self._left: dict[str, None] = {}
        self._moved: deque[Change] = deque(maxlen=KEPT_CHANGES)
        self._accounts: list[HostAccount] = []

    def paused(self) -> AbstractContextManager[None]:
        """A block in which the store's thread does not compete with the caller for the interpreter; see
        ``Store.paused``.
        """
        return nullcontext() if self._store is None else self._store.paused()

    # -- taking -------------------------------------------------------------------------------------

    def samples(self, samples: Sequence[Sample]) -> None:
        """Store the samples of one tick."""
        if self._store is not None and samples:
            self._store.add_samples(self._wall_clock(), samples)

    def host(self, account: HostAccount | None) -> None:
        """Store the mean account of every ``HOST_S`` seconds."""
        if self._store is None or account is None:
            return
        self._accounts.append(account)
        if sum(item.interval_s for item in self._accounts) >= HOST_S:
            self._store.add_host(self._wall_clock(), mean_account(self._accounts))
            self._accounts.clear()

    def decision(self, decision: Decision) -> None:
        """Remember a decision; store, log and announce it if it differs from the last one."""
        recent = self._decisions.setdefault(decision.workload, deque(maxlen=KEPT_DECISIONS))
        if decision.mode is Mode.OBSERVE and decision.action is not Action.HOLD:
            self._would[decision.workload] = decision
        last = self._last.get(decision.workload)
        if last is not None and _same(last.decision, decision):
            recent[-1] = decision
            if decision.at_s - last.stored_s < REPEAT_S:
                last.decision = decision
                return
        else:
            if len(recent) == KEPT_DECISIONS and recent[0].action is not Action.HOLD:
                moves = self._moves.setdefault(decision.workload, deque(maxlen=KEPT_MOVES))
                moves.append(recent[0])
            recent.append(decision)
            self._announce_decision(decision)
        self._last[decision.workload] = _Last(decision, decision.at_s)
        if self._store is not None:
            self._store.add_decision(self._wall_clock(), decision)

    def outcome(self, outcome: Outcome) -> None:
        """Store, log and announce the outcome of a decision."""
        self._outcomes[outcome.workload] = outcome
        self._came.append(outcome)
        if self._store is not None:
            self._store.add_outcome(self._wall_clock(), outcome)
        fields = {"event": EventKind.OUTCOME, "workload": outcome.workload}
        log.info("%s: %s", outcome.workload, outcome.text, extra={"fields": fields})
        self.event(Event(outcome.at_s, EventKind.OUTCOME, outcome.text, outcome.workload, outcome))

    def change(self, at_s: float, changes: ChangeSet, result: str) -> None:
        """Announce a transaction. The executor's callback audits each individual write."""
        writes = tuple(f"{w.path}: {w.before!r} -> {w.value!r}" for w in changes.writes)
        self._changes.append(_Change(at_s, writes, result, frozenset(w.workload for w in changes.writes)))
        text = f"{result}: {', '.join(writes)}"
        log.info("%s", text, extra={"fields": {"event": EventKind.CHANGE}})
        self.event(Event(at_s, EventKind.CHANGE, text, "", changes))

    def audit(self, write: Write, outcome: str) -> None:
        """Store one kernel write as it happened."""
        if self._store is not None:
            self._store.add_writes(self._wall_clock(), (write,), outcome)

    def event(self, event: Event) -> None:
        """Send an event to every subscriber; a subscriber that lags loses its oldest events."""
        if event.kind is not EventKind.TICK and self._store is not None:
            by = f"; by {event.by}" if event.by else ""
            self._store.add_event(self._wall_clock(), event.kind.value, f"{event.workload}: {event.text}{by}")
        for queue in self._subscribers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    def problem(self, key: str, text: str | None, at_s: float, about: str = "") -> None:
        """Report a condition that an operator should know about, or clear it (``text`` None).

        ``key`` identifies the condition, which is logged once, not at every tick. ``about``: the subject of a
        condition whose text varies; it is logged again only after ``healed(about)`` or ``REMIND_S``.
        """
        if text is None:
            self._problems.pop(key, None)
        elif self._problems.get(key) != text:
            self._problems[key] = text
            if about:
                self._told = {what: told_s for what, told_s in self._told.items() if at_s - told_s < REMIND_S}
                if about in self._told:
                    return
                self._told[about] = at_s
            log.warning("%s", text, extra={"fields": {"event": EventKind.PROBLEM}})
            self.event(Event(at_s, EventKind.PROBLEM, text))

    def left_behind(self, key: str, text: str | None, at_s: float) -> None:
        """Report a problem of a removed workload, or clear it, as ``problem`` does.

        Only the ``KEPT_LEFT`` newest stay, so that a problem that is never cleared does not stay forever.
        """
        self.problem(key, text, at_s)
        self._left.pop(key, None)
        if text is not None:
            self._left[key] = None
            if len(self._left) > KEPT_LEFT:
                oldest = next(iter(self._left))
                del self._left[oldest]
                self._problems.pop(oldest, None)

    def healed(self, about: str) -> None:
        """Note that the subject works (again), so that its next failure is logged."""
        self._told.pop(about, None)

    # -- giving -------------------------------------------------------------------------------------

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about present conditions."""
        store = self._store.problem if self._store is not None else None
        return (*self._problems.values(), *((store,) if store else ()))

    def changes(self, limit: int) -> tuple[Change, ...]:
        """The last changes of protection, newest first; in observe mode, the changes that enforcing would
        have made.
        """
        return tuple(list(self._moved)[: -limit - 1 : -1])

    def last_decision(self, workload: str) -> Decision | None:
        """The newest decision about this LRA."""
        last = self._last.get(workload)
        return last.decision if last is not None else None

    def would(self, workload: str) -> Decision | None:
        """The newest decision about this LRA that would have changed something if enforced."""
        return self._would.get(workload)

    def last_outcome(self, workload: str) -> Outcome | None:
        """The newest reviewed change of this LRA."""
        return self._outcomes.get(workload)

    def decisions(self, workload: str, at_s: float | None, limit: int) -> tuple[Decision, ...]:
        """Decisions, newest first, made at or before ``at_s``."""
        recent = (*self._moves.get(workload, ()), *self._decisions.get(workload, ()))
        found = [d for d in reversed(recent) if at_s is None or d.at_s <= at_s]
        return tuple(found[:limit])

    def decisions_about_batch(self, batch: str, at_s: float | None, limit: int) -> tuple[Decision, ...]:
        """The decisions about LRAs that changed settings of this batch workload, newest first."""
        times = {change.at_s for change in self._changes if batch in change.workloads}
        found = [d for recent in self._decisions.values() for d in recent if d.at_s in times]
        found = [d for d in found if d.action is not Action.HOLD and (at_s is None or d.at_s <= at_s)]
        return tuple(sorted(found, key=lambda d: d.at_s, reverse=True)[:limit])

    def consequences(self, decision: Decision) -> Consequences:
        """The writes and the outcome of a decision, for all workloads."""
        change = next((c for c in reversed(self._changes) if c.at_s == decision.at_s), None)
        came = [o for o in self._came if o.workload == decision.workload]
        outcome = next((o for o in reversed(came) if o.decided_at_s == decision.at_s), None)
        written, result = (change.writes, change.result) if change is not None else ((), "")
        return Consequences(decision.at_s, written, result, outcome)

    async def subscribe(self) -> AsyncIterator[Event]:
        """All events from now on, until the agent stops."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUED_EVENTS)
        self._subscribers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._subscribers.discard(queue)

    def end_subscriptions(self) -> None:
        """End all subscriptions."""
        for queue in self._subscribers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def forget(self, workload: str) -> None:
        """Forget a removed workload (the store keeps its data)."""
        for kept in (self._decisions, self._moves, self._last, self._outcomes, self._observed, self._would):
            kept.pop(workload, None)

    def _announce_decision(self, decision: Decision) -> None:
        enforced = decision.mode is Mode.ENFORCE
        if decision.action is Action.HOLD:
            text = f"{decision.verdict.health}: {decision.reason}"
            level = logging.DEBUG
        else:
            would = "" if enforced else "would "
            text = f"{would}{decision.action}: {decision.current} -> {decision.chosen}; {decision.reason}"
            is_news = enforced or self._is_news(decision)
            level = logging.INFO if is_news else logging.DEBUG
            if is_news:
                self._moved.append(_change_of(decision))
        fields = {
            "event": EventKind.DECISION,
            "workload": decision.workload,
            "action": decision.action,
            "health": decision.verdict.health,
            "mode": "enforce" if enforced else "observe",
        }
        log.log(level, "%s: %s", decision.workload, text, extra={"fields": fields})
        self.event(Event(decision.at_s, EventKind.DECISION, text, decision.workload, decision))

    def _is_news(self, decision: Decision) -> bool:
        """True if a decision in observe mode is to be logged.

        That is the case if its action differs from that of the last logged decision, or after ``QUIET_S`` if the
        chosen allocation differs, or after ``REMIND_S``.
        """
        logged = self._observed.get(decision.workload)
        news = (
            logged is None
            or logged.action is not decision.action
            or decision.at_s - logged.at_s >= (QUIET_S if logged.chosen != decision.chosen else REMIND_S)
        )
        if news:
            self._observed[decision.workload] = decision
        return news


def _change_of(decision: Decision) -> Change:
    return Change(
        decision.at_s,
        decision.workload,
        decision.action,
        decision.current,
        decision.chosen,
        decision.mode,
        decision.reason,
        decision.to_best,
    )


def _same(a: Decision, b: Decision) -> bool:
    return (a.mode, a.action, a.chosen, a.verdict.health, a.verdict.cause, a.reason) == (
        b.mode,
        b.action,
        b.chosen,
        b.verdict.health,
        b.verdict.cause,
        b.reason,
    )
