"""A model made from a recording: it returns the answers that the Res-Perf model inside a snapshot gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perphd.control.replay_routes import question_key
from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import Reading
from perphd.domain.wire import decode


class NotAskedError(LookupError):
    """The replayed policy asked a question that the recorded one did not ask, because its decisions differ."""


class FrozenModel:
    """Answers exactly the recorded questions."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    @property
    def is_closed(self) -> bool:
        """See ``ResPerfModel``."""
        return bool(self._found(question_key("closed")))

    def reference(self, signal: str, load: Reading) -> Band | None:
        """See ``ResPerfModel``."""
        value = self._found(question_key("reference", signal, load))
        return None if value is None else decode(Band, value)

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """See ``ResPerfModel``."""
        return self._bands("work", allocations, context)

    def predict_delay(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """See ``ResPerfModel``."""
        return self._bands("delay", allocations, context)

    def batch_cores(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """See ``ResPerfModel``."""
        return self._bands("batch", allocations, context)

    def _bands(self, what: str, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        found = self._found(question_key(what, tuple(allocations), context))
        return tuple(decode(Band, item) for item in found)

    def _found(self, question: str) -> Any:
        if question not in self._answers:
            raise NotAskedError(f"the recorded policy did not ask the model: {question[:200]}")
        return self._answers[question]
