"""Published profiles in columns, one row per node, and the scores that policies give to rows.

A decision over thousands of nodes takes a few operations on arrays. Each policy keeps the columns that it needs in a
separate class (``PolicyColumns``). The fleet creates them when the policy is first used, and ``put`` replaces one row
in all of them when a node publishes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from perphd.cluster.scheduling.profile import NodeProfile
from perphd.forecast.histogram import Floats
from perphd.forecast.usage_profile import UsageProfile, memory_ratio

Rows: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]


class PolicyColumns(Protocol):
    """Columns of one policy. ``put`` fills one row."""

    def __init__(self, fleet: Fleet) -> None: ...

    def put(self, row: int, profile: NodeProfile) -> None:
        """Replace a row."""


_C = TypeVar("_C", bound=PolicyColumns)


class Fleet:
    """The newest profile of every node, and the joint use of applications (``usage``, Optum's ERO).

    Policies only read the fleet. ``put`` accepts a profile in time independent of the number of known nodes (a new node
    costs a copy of the columns).
    """

    def __init__(self, profiles: Iterable[NodeProfile], usage: UsageProfile | None = None) -> None:
        self.usage = usage if usage is not None else UsageProfile()
        self.profiles: list[NodeProfile] = []
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._groups: dict[type[Any], Any] = {}
        self._memory_ratios: dict[str, float] = {}
        for profile in profiles:
            self._rows[profile.node] = len(self.profiles)
            self.profiles.append(profile)
        if len(self._rows) < len(self.profiles):
            raise ValueError("two profiles belong to the same node; each node must have one")

    def __len__(self) -> int:
        return len(self.profiles)

    @property
    def rows(self) -> Rows:
        """All rows."""
        return np.arange(len(self.profiles))

    def row(self, node: str) -> int | None:
        """The row of a node; None if it has published nothing."""
        return self._rows.get(node)

    def put(self, profile: NodeProfile) -> None:
        """Accept a node's new profile."""
        row = self._rows.get(profile.node)
        if row is None and self._free:
            row = self._rows[profile.node] = self._free.pop()
        if row is None:
            self._rows[profile.node] = len(self.profiles)
            self.profiles.append(profile)
            self._groups.clear()
            return
        self.profiles[row] = profile
        for group in self._groups.values():
            group.put(row, profile)

    def remove(self, node: str) -> None:
        """Forget a node. Its row keeps the last profile until another node takes the row: query only rows of known
        nodes.
        """
        row = self._rows.pop(node, None)
        if row is not None:
            self._free.append(row)

    def columns(self, group: type[_C]) -> _C:
        """The columns of one policy."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = group(self)
        result: _C = found
        return result

    def memory_ratio(self, application: str) -> float:
        """Assumed memory use of a pod of this application, as a share of its request."""
        found = self._memory_ratios.get(application)
        if found is None:
            found = self._memory_ratios[application] = memory_ratio(self.usage, application)
        return found


class BaseColumns:
    """Capacity, requests, use and age of every node."""

    FIELDS = (
        "cores",
        "memory_bytes",
        "requested_cores",
        "requested_bytes",
        "used_cores",
        "used_bytes",
        "p99_cores",
        "mean_cores",
        "sd_cores",
        "made_s",
        "ttl_s",
    )

    def __init__(self, fleet: Fleet) -> None:
        self._table = np.zeros((len(self.FIELDS), len(fleet)))
        for row, profile in enumerate(fleet.profiles):
            self.put(row, profile)

    def put(self, row: int, profile: NodeProfile) -> None:
        """Replace a row."""
        self._table[:, row] = [getattr(profile, name) for name in self.FIELDS]

    def refresh(self, name: str, rows: Rows, values: Floats) -> None:
        """Replace measured values of many nodes at once. Their pods stay; ``profiles`` keeps the older values."""
        self._table[self.FIELDS.index(name), rows] = values

    def of(self, name: str, rows: Rows) -> Floats:
        """One column, for these rows."""
        column: Floats = self._table[self.FIELDS.index(name), rows]
        return column


@dataclass(frozen=True, slots=True)
class NodeScore:
    """A policy's verdict on one node. ``terms``: parts of the score; ``refusals``: reasons why it is not feasible."""

    node: str
    feasible: bool
    score: float
    terms: Mapping[str, float]
    refusals: tuple[str, ...]

    def __str__(self) -> str:
        if not self.feasible:
            return f"{self.node}: {'; '.join(self.refusals)}"
        parts = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        return f"{self.node}: {self.score:.4g} ({parts})"


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A policy's verdict on all candidates; higher scores are better. Arrays follow ``rows``.

    ``additive``: the score is the sum of the terms; else the terms are sort keys, most important first. ``refusals``:
    for each reason, a mask of the candidates refused for it.
    """

    policy: str
    nodes: Sequence[str]
    rows: Rows
    score: Floats
    terms: Mapping[str, Floats]
    refusals: Mapping[str, Mask] = field(default_factory=dict)
    additive: bool = True

    @property
    def feasible(self) -> Mask:
        """Mask of the candidates without a refusal."""
        against = np.zeros(len(self.rows), dtype=bool)
        for mask in self.refusals.values():
            against |= mask
        return ~against

    def best(self) -> NodeScore | None:
        """The feasible candidate with the highest score, the first of several equal ones; None if there is none."""
        feasible = self.feasible
        if not feasible.any():
            return None
        return self.explained(int(np.argmax(np.where(feasible, self.score, -np.inf))))

    def explained(self, place: int) -> NodeScore:
        """The candidate at this place of ``rows``."""
        return NodeScore(
            self.nodes[int(self.rows[place])],
            bool(self.feasible[place]),
            float(self.score[place]),
            {name: float(values[place]) for name, values in self.terms.items()},
            self.against(place),
        )

    def against(self, place: int) -> tuple[str, ...]:
        """Reasons why the candidate at this place of ``rows`` is refused."""
        return tuple(reason for reason, mask in self.refusals.items() if mask[place])

    def ranked(self, most: int) -> tuple[NodeScore, ...]:
        """The best feasible candidates, best first."""
        feasible = np.nonzero(self.feasible)[0]
        order = feasible[np.argsort(-self.score[feasible], kind="stable")]
        return tuple(self.explained(int(place)) for place in order[:most])


def node_names(fleet: Fleet) -> Sequence[str]:
    """The nodes' names by row."""
    return _Names(fleet)


class _Names(Sequence[str]):
    def __init__(self, fleet: Fleet) -> None:
        self._profiles = fleet.profiles

    def __getitem__(self, row: Any) -> Any:
        return self._profiles[row].node

    def __len__(self) -> int:
        return len(self._profiles)
