"""Admission questions: the effect of additional batch work, and the answer with its reasons."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.allocation import Allocation
from perphd.domain.decision import Health, Prediction
from perphd.domain.reading import Reading
from perphd.domain.units import parse_size_bytes


@dataclass(frozen=True, slots=True)
class Arrival:
    """Batch work that may be started: its CPU demand in CPUs and its memory in bytes."""

    cpu_cores: float
    memory_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> Arrival:
        """Parse ``batch:cpu=4,mem=8G`` (``batch:`` is optional). Raises ValueError with a sentence."""
        kind, colon, rest = text.partition(":")
        if not colon:
            rest = text
        elif kind != "batch":
            raise ValueError(f"{kind!r} is not a supported kind of work (allowed: batch)")
        values: dict[str, str] = {}
        for item in rest.split(","):
            key, equals, value = item.partition("=")
            if not equals or key not in ("cpu", "mem") or key in values:
                raise ValueError(f"{item!r}: must be cpu=CORES or mem=SIZE, each given once")
            values[key] = value
        if "cpu" not in values:
            raise ValueError("cpu=CORES is missing")
        try:
            cores = float(values["cpu"])
        except ValueError:
            cores = -1.0
        if not 0 < cores <= 1e5:
            raise ValueError(f"cpu={values['cpu']}: must be a number of cores above 0 and at most 100000")
        return cls(cores, parse_size_bytes(values["mem"]) if "mem" in values else 0)


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of the additional work on one LRA.

    ``as_is``: its prediction under the settings in force; ``with_best``: under ``best``, the best allocation
    that perphd could apply. Both are None if its undisturbed performance is unknown. ``chance``: probability
    of meeting its target under ``best``. ``bearable``: True if this LRA tolerates the additional work.
    """

    lra: str
    health: Health
    as_is: Prediction | None
    with_best: Prediction | None
    best: Allocation | None
    chance: Reading
    bearable: bool
    text: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer. ``reasons``: why it is refused or accepted. ``batch_cores``: CPUs that all batch would get."""

    accepted: bool
    reasons: tuple[str, ...]
    effects: tuple[Effect, ...]
    batch_cores: Reading
