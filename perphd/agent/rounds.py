"""Captures complete decision rounds: the policy's input, its queries to models with their answers, its decision.

Recordings of them can be replayed bit for bit. Without listeners, this costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext, Policy, ResPerfModel, Snapshot, TargetState
from perphd.domain.reading import Reading

QUEUED_ROUNDS = 64
"""Number of rounds that a listener may lag before its recording ends; a recording with a gap cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A policy's query to a model, with the answer. ``parts``: the arguments."""

    what: str
    parts: tuple[object, ...]
    answer: object


@dataclass(frozen=True, slots=True)
class Round:
    """One decision. ``asked``: queries by LRA; ``snapshot.memory``: the policy's memory before the decision."""

    snapshot: Snapshot
    asked: Mapping[str, tuple[Question, ...]]
    target: TargetState


class AskedModel:
    """Forwards queries to a live model and records them with the answers."""

    def __init__(self, model: ResPerfModel) -> None:
        self._model = model
        self.questions: list[Question] = []

    @property
    def is_closed(self) -> bool:
        """See ``ResPerfModel``."""
        answer = self._model.is_closed
        self.questions.append(Question("closed", (), answer))
        return answer

    def reference(self, signal: str, load: Reading) -> Band | None:
        """See ``ResPerfModel``."""
        answer = self._model.reference(signal, load)
        self.questions.append(Question("reference", (signal, load), answer))
        return answer

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """See ``ResPerfModel``."""
        return self._kept("work", allocations, context, self._model.predict_work(allocations, context))

    def predict_delay(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """See ``ResPerfModel``."""
        return self._kept("delay", allocations, context, self._model.predict_delay(allocations, context))

    def batch_cores(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """See ``ResPerfModel``."""
        return self._kept("batch", allocations, context, self._model.batch_cores(allocations, context))

    def _kept(
        self, what: str, allocations: Sequence[Allocation], context: ModelContext, answer: tuple[Band, ...]
    ) -> tuple[Band, ...]:
        self.questions.append(Question(what, (tuple(allocations), context), answer))
        return answer


def observed(policy: Policy, snapshot: Snapshot) -> Round:
    """Let the policy decide, and record its queries."""
    asked = {v.spec.name: AskedModel(v.model) for v in snapshot.workloads if v.model is not None}
    views = tuple(replace(v, model=asked.get(v.spec.name)) for v in snapshot.workloads)
    target = policy.decide(replace(snapshot, workloads=views))
    return Round(snapshot, {name: tuple(model.questions) for name, model in asked.items()}, target)


class RoundTap:
    """A wrapper around a policy, with listeners to its rounds."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._listeners: set[asyncio.Queue[Round | None]] = set()

    @property
    def name(self) -> str:
        """The wrapped policy's name."""
        return self._policy.name

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Decide as the wrapped policy does."""
        if not self._listeners:
            return self._policy.decide(snapshot)
        done = observed(self._policy, snapshot)
        for queue in list(self._listeners):
            if queue.qsize() >= QUEUED_ROUNDS:
                self._listeners.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(done)
        return done.target

    async def rounds(self) -> AsyncIterator[Round]:
        """Every round from now on, without a gap. Ends when the listener lags too far behind, or with the agent."""
        queue: asyncio.Queue[Round | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while (item := await queue.get()) is not None:
                yield item
        finally:
            self._listeners.discard(queue)

    def end(self) -> None:
        """End all recordings."""
        for queue in self._listeners:
            queue.put_nowait(None)
        self._listeners.clear()
