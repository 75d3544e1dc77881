"""What would be if this work came: the question, and the answer with its reasons."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.allocation import Allocation
from perphd.domain.decision import Health, Prediction
from perphd.domain.reading import Reading
from perphd.domain.units import parse_size_bytes


@dataclass(frozen=True, slots=True)
class Arrival:
    """Batch work that asks to start: CPU that it would use if it could, and memory that it will hold."""

    cpu_cores: float
    memory_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> Arrival:
        """From ``batch:cpu=4,mem=8G`` (or without ``batch:``). Raises ValueError with a sentence."""
        kind, colon, rest = text.partition(":")
        if not colon:
            rest = text
        elif kind != "batch":
            raise ValueError(f"{kind!r} is no kind of work that can be asked about (allowed: batch)")
        values: dict[str, str] = {}
        for item in rest.split(","):
            key, equals, value = item.partition("=")
            if not equals or key not in ("cpu", "mem") or key in values:
                raise ValueError(f"{item!r} is not cpu=CORES or mem=SIZE, each once")
            values[key] = value
        if "cpu" not in values:
            raise ValueError("cpu=CORES is missing")
        try:
            cores = float(values["cpu"])
        except ValueError:
            cores = -1.0
        if not 0 < cores <= 1e5:
            raise ValueError(f"cpu={values['cpu']}: not a number of cores above 0")
        return cls(cores, parse_size_bytes(values["mem"]) if "mem" in values else 0)


@dataclass(frozen=True, slots=True)
class Effect:
    """One LRA: how it is, what it would be under what is in force, and with the best that perphd could do.

    ``as_is`` and ``with_best`` are None where its undisturbed performance is not known. ``chance``: that it meets
    its target under ``best``.
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
    """The answer. ``reasons``: why it is refused, or what speaks for it; ``batch_cores``: what all batch would get."""

    accepted: bool
    reasons: tuple[str, ...]
    effects: tuple[Effect, ...]
    batch_cores: Reading
