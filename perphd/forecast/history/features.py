"""Features of a job: individual facts and pairs of facts, as text that is equal for similar jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from perphd.domain.masking import masked

_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_LONG_HEX: Final = re.compile(r"\b[0-9a-f]{12,}\b")
_SECRET: Final = re.compile(r"pass|pwd|secret|token|credential|auth|api-?_?key|private", re.IGNORECASE)
"""Options whose values are not recorded."""
GREATEST_LENGTH: Final = 200
"""Maximum length of one feature value in characters. Longer values are truncated."""


@dataclass(frozen=True, slots=True)
class JobDescription:
    """Facts known when a job starts; empty or None where unknown.

    ``image``: container image or systemd unit. ``hour``: local hour of the start, 0 to 23.
    """

    user: str = ""
    image: str = ""
    name: str = ""
    argv: tuple[str, ...] = ()
    requested_cores: float | None = None
    requested_bytes: float | None = None
    hour: int | None = None


def feature_values(facts: JobDescription) -> tuple[str, ...]:
    """All feature values of a job: each known fact, and each pair of facts."""
    known = [f"{name}={value}"[:GREATEST_LENGTH] for name, value in _facts(facts) if value]
    return (*known, *(f"{first} & {second}" for first, second in combinations(known, 2)))


def argv_shape(argv: Sequence[str]) -> str:
    """A command line without secrets and without parts that differ between runs: numbers, digests, directories."""
    words, hidden = [], False
    for word in argv:
        words.append("#" if hidden and not word.startswith("-") else _shape(word))
        hidden = word.startswith("-") and "=" not in word and _SECRET.search(word) is not None
    return " ".join(words)


def _facts(facts: JobDescription) -> tuple[tuple[str, str], ...]:
    return (
        ("user", facts.user),
        ("image", facts.image),
        ("name", facts.name),
        ("argv", argv_shape(facts.argv)),
        ("cores", _size(facts.requested_cores)),
        ("memory", _size(facts.requested_bytes)),
        ("hour", "" if facts.hour is None else str(facts.hour)),
    )


def _shape(word: str) -> str:
    if "://" in word:
        word = masked(word)
    option, equals, value = word.partition("=")
    if equals:
        return f"{option}={'#' if _SECRET.search(option) else _shape(value)}"
    return _NUMBER.sub("#", _LONG_HEX.sub("#", word.rsplit("/", maxsplit=1)[-1]))


def _size(value: float | None) -> str:
    """A size class, so that sizes within a factor of about 1.4 give one feature value."""
    return "" if value is None or value <= 0 else f"2^{round(2 * math.log2(value)) / 2:g}"
