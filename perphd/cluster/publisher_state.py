"""State of a node's publisher in the status of the node's NodeProfile. Pure.

The publisher writes it in every round, even while perphd does not answer on the node. A publisher that is silent for
its time to live has ended, or cannot reach the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perphd.cluster.document import is_current

KEY: Final = "publisher"
"""The key in ``status``."""
MOST_PROBLEM: Final = 300
"""Maximum length of the problem in characters."""


@dataclass(frozen=True, slots=True)
class PublisherState:
    """One publisher.

    Attributes:
        version: perphd's version.
        heard_unix_s: time of its last round, by the clock of the process that holds this state.
        ttl_s: time after which it counts as silent.
        problem: the last error; empty if everything was published.
        problem_s: duration of that problem as of that round; 0: there is none.
    """

    version: str
    heard_unix_s: float
    ttl_s: float
    problem: str = ""
    problem_s: float = 0.0

    def is_silent(self, now_s: float) -> bool:
        """True if it has not been heard within its time to live."""
        return not is_current(self.heard_unix_s, self.ttl_s, now_s)

    def as_status(self) -> dict[str, Any]:
        """The value under ``KEY``."""
        return {
            "version": self.version,
            "heardUnix": round(self.heard_unix_s, 3),
            "ttlSeconds": self.ttl_s,
            "problem": self.problem[:MOST_PROBLEM],
            "problemSeconds": round(self.problem_s, 3),
        }


def publisher_of(profile: Mapping[str, Any]) -> PublisherState | None:
    """The publisher's state in a NodeProfile; None if it has none, or an invalid one."""
    status = profile.get("status")
    found = status.get(KEY) if isinstance(status, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    try:
        return PublisherState(
            str(found["version"]),
            float(found["heardUnix"]),
            float(found["ttlSeconds"]),
            str(found.get("problem", "")),
            float(found.get("problemSeconds", 0.0)),
        )
    except (KeyError, TypeError, ValueError):
        return None
