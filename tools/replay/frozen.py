"""The Res-Perf model inside a snapshot as what it answered: a recording of questions, and a model made of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from perphd.control.wire import decode, encode
from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext, ResPerfModel
from perphd.domain.reading import Reading


class NotAskedError(LookupError):
    """A replayed policy asked what the recorded one did not: its decisions have taken another way."""


class AskedModel:
    """Passes questions on to a live model and keeps the answers, as JSON values."""

    def __init__(self, model: ResPerfModel) -> None:
        self._model = model
        self.answers: dict[str, Any] = {}

    @property
    def is_closed(self) -> bool:
        """See ``ResPerfModel``."""
        self.answers["closed"] = self._model.is_closed
        return self._model.is_closed

    def reference(self, signal: str, load: Reading) -> Band | None:
        """See ``ResPerfModel``."""
        band = self._model.reference(signal, load)
        self.answers[_question("reference", signal, load)] = encode(band)
        return band

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
        self, what: str, allocations: Sequence[Allocation], context: ModelContext, bands: tuple[Band, ...]
    ) -> tuple[Band, ...]:
        self.answers[_question(what, tuple(allocations), context)] = encode(bands)
        return bands


class FrozenModel:
    """Answers what was asked when it was recorded, and nothing else."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    @property
    def is_closed(self) -> bool:
        """See ``ResPerfModel``."""
        return bool(self._found("closed"))

    def reference(self, signal: str, load: Reading) -> Band | None:
        """See ``ResPerfModel``."""
        value = self._found(_question("reference", signal, load))
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
        found = self._found(_question(what, tuple(allocations), context))
        return tuple(decode(Band, item) for item in found)

    def _found(self, question: str) -> Any:
        if question not in self._answers:
            raise NotAskedError(f"the recorded policy did not ask the model: {question[:200]}")
        return self._answers[question]


def _question(what: str, *parts: object) -> str:
    return json.dumps([what, *(encode(part) for part in parts)], separators=(",", ":"))
