"""Cache and bandwidth of several LRAs, domain by domain: each L3 domain has a ``CacheTurn`` of its own.

LRAs with cores of their own share a cache only with those on the same L3 domain. Batch loses ways and bandwidth in a
domain by what the LRAs there need, and keeps everything where no LRA is. An LRA with cores in two domains counts in
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from perphd.admission.crowd_cache import CacheState, CacheTurn
from perphd.admission.domains import domains_with
from perphd.admission.member import Look, Member
from perphd.admission.placement import Cores, cpus_of
from perphd.admission.settings import PolicySettings
from perphd.domain.policy import Snapshot, WorkloadView

_T = TypeVar("_T")


class DomainCaches:
    """Works out cache and bandwidth of one tick in every domain; ``states`` is what it came to."""

    def __init__(
        self,
        settings: PolicySettings,
        snapshot: Snapshot,
        before: Mapping[int, CacheState],
        placed: Mapping[str, Cores],
        giving: Sequence[WorkloadView],
    ) -> None:
        self._settings, self._snapshot, self._giving = settings, snapshot, giving
        self._topology = snapshot.host.topology
        self._turns = {domain: self._turn(state) for domain, state in before.items()}
        self._moved = False
        self._homes = self._homes_of(placed)

    @property
    def moved(self) -> bool:
        """True if something changes this tick."""
        return self._moved or any(turn.moved for turn in self._turns.values())

    @property
    def states(self) -> dict[int, CacheState]:
        """State to carry to the next tick."""
        return {domain: turn.state for domain, turn in self._turns.items()}

    def protection(self, name: str) -> tuple[int, int]:
        """Ways that batch may not use and its throttle (%), where this LRA is: the strictest of its domains."""
        states = [turn.state for _, turn in self._of(name)]
        return max((s.ways for s in states), default=0), min((s.pct for s in states), default=100)

    # -- as CacheTurn, for the domains of one LRA or for each domain with the LRAs there --------------------------

    def tighten(self, member: Member, look: Look) -> bool:
        """Take cache or bandwidth from batch for this LRA, wherever it is; True if it was done."""
        done = [turn.tighten(member, look) for _, turn in self._of(look.name)]  # in all of them
        return any(done)

    def judge_tightened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> tuple[str, ...]:
        """The LRAs that what was taken for them did not help: it goes back at once."""
        found = (
            turn.judge_tightened(self._in(domain, members), self._in(domain, looks))
            for domain, turn in self._turns.items()
        )
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def judge_loosened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> tuple[str, ...]:
        """Those who miss what was given back in their domain: it is taken again."""
        short: dict[str, None] = {}
        for domain, turn in self._turns.items():
            found = turn.judge_loosened(self._in(domain, members), self._in(domain, looks))
            short.update(dict.fromkeys(found))
        return tuple(short)

    def loosen(self, members: Mapping[str, Member]) -> str | None:
        """A step back to batch in the first domain where everybody has had room: the first LRA there, or None."""
        for domain, turn in self._turns.items():
            here = self._in(domain, members)
            if here and turn.loosen(here):
                return next(iter(here))
        return None

    # -- who is where ----------------------------------------------------------------------------------

    def move(self, placed: Mapping[str, Cores], has_batch: bool) -> None:
        """The LRAs are on these cores now: a domain that has got its first begins, one without any is given up."""
        self._homes = self._homes_of(placed)
        used = {domain for domains in self._homes.values() for domain in domains}
        for domain in sorted(used - self._turns.keys()):
            self._turns[domain] = self._turn(CacheState())
            self._turns[domain].begin()
        for domain in self._turns.keys() - used:
            state = self._turns.pop(domain).state
            self._moved = self._moved or (state.ways, state.pct) != (0, 100)
        if not has_batch:
            for turn in self._turns.values():
                turn.end()

    def _turn(self, state: CacheState) -> CacheTurn:
        return CacheTurn(self._settings, self._snapshot, state, self._giving)

    def _homes_of(self, placed: Mapping[str, Cores]) -> dict[str, tuple[int, ...]]:
        return {n: domains_with(self._topology, cpus_of(self._topology, c)) for n, c in placed.items()}

    def _of(self, name: str) -> list[tuple[int, CacheTurn]]:
        """The domains of an LRA; one that is not placed yet could come into any."""
        homes = self._homes.get(name)
        return [(d, turn) for d, turn in self._turns.items() if homes is None or d in homes]

    def _in(self, domain: int, everybody: Mapping[str, _T]) -> dict[str, _T]:
        return {
            name: each
            for name, each in everybody.items()
            if name not in self._homes or domain in self._homes[name]
        }
