"""A run of batch that has ended: what it was, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HISTORY_FILE: Final = "jobs.sqlite"
"""The job history, in the state directory."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One life of a control group. What is not known is empty or None.

    ``uid``, ``argv``: of its first process. ``image``: its container's image, else its unit. ``took``: amounts by what
    the job history calls them.
    """

    name: str
    image: str
    uid: int | None
    argv: tuple[str, ...]
    requested_cores: float | None
    requested_bytes: float | None
    hour: int
    took: Mapping[str, float]
