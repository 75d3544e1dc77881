"""Cache and bandwidth of several LRAs, with one ``CacheTick`` per L3 domain.

LRAs with exclusive cores share a cache only with LRAs on the same L3 domain. Batch loses ways and bandwidth in a domain
according to the needs of the LRAs there, and keeps everything in domains without LRAs. An LRA with cores in two domains
counts in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition_cache import CacheState, CacheTick
from perphd.admission.arbiter.placement import Cores, cpus_of
from perphd.admission.inference.domains import domains_with
from perphd.admission.settings import PolicySettings
from perphd.domain.policy import Snapshot, WorkloadView

_T = TypeVar("_T")


class DomainCaches:
    """Determines cache and bandwidth of one tick in every domain; ``states`` holds the result."""

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
        self._ticks = {domain: self._turn(state) for domain, state in before.items()}
        self._moved = False
        self._homes = self._homes_of(placed)

    @property
    def moved(self) -> bool:
        """True if something changes in this tick."""
        return self._moved or any(tick.moved for tick in self._ticks.values())

    @property
    def states(self) -> dict[int, CacheState]:
        """State to carry to the next tick, by domain."""
        return {domain: tick.state for domain, tick in self._ticks.items()}

    def protection(self, name: str) -> tuple[int, int]:
        """Ways closed to batch, and its throttle (%), for this LRA: the strictest of its domains."""
        states = [tick.state for _, tick in self._of(name)]
        return max((s.ways for s in states), default=0), min((s.pct for s in states), default=100)

    # -- the methods of CacheTick, for the domains of one LRA or for all domains ------------------------------

    def tighten(self, member: Member, look: Look) -> bool:
        """Take cache or bandwidth from batch for this LRA in all its domains; returns True if it took any."""
        done = [
            tick.tighten(member, look) for _, tick in self._of(look.name)
        ]  # a list, so that every domain is tried
        return any(done)

    def judge_tightened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> tuple[str, ...]:
        """Evaluate earlier restrictions of batch.

        A restriction that did not help is reverted at once. Returns the LRAs for which such restrictions were made.
        """
        found = (
            tick.judge_tightened(self._in(domain, members), self._in(domain, looks))
            for domain, tick in self._ticks.items()
        )
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def judge_loosened(self, members: Mapping[str, Member], looks: Mapping[str, Look]) -> tuple[str, ...]:
        """Evaluate earlier steps given back; returns the LRAs that need them again."""
        short: dict[str, None] = {}
        for domain, tick in self._ticks.items():
            found = tick.judge_loosened(self._in(domain, members), self._in(domain, looks))
            short.update(dict.fromkeys(found))
        return tuple(short)

    def loosen(self, members: Mapping[str, Member]) -> str | None:
        """Give a step back to batch in the first domain with slack; returns the first LRA there, or None."""
        for domain, tick in self._ticks.items():
            here = self._in(domain, members)
            if here and tick.loosen(here):
                return next(iter(here))
        return None

    # -- who is where ----------------------------------------------------------------------------------

    def move(self, placed: Mapping[str, Cores], has_batch: bool) -> None:
        """Follow the LRAs to these cores: begin domains that got their first LRA, and drop domains without LRAs."""
        self._homes = self._homes_of(placed)
        used = {domain for domains in self._homes.values() for domain in domains}
        for domain in sorted(used - self._ticks.keys()):
            self._ticks[domain] = self._turn(CacheState())
            self._ticks[domain].begin()
        for domain in self._ticks.keys() - used:
            state = self._ticks.pop(domain).state
            self._moved = self._moved or (state.ways, state.pct) != (0, 100)
        if not has_batch:
            for tick in self._ticks.values():
                tick.end()

    def _turn(self, state: CacheState) -> CacheTick:
        return CacheTick(self._settings, self._snapshot, state, self._giving)

    def _homes_of(self, placed: Mapping[str, Cores]) -> dict[str, tuple[int, ...]]:
        return {n: domains_with(self._topology, cpus_of(self._topology, c)) for n, c in placed.items()}

    def _of(self, name: str) -> list[tuple[int, CacheTick]]:
        """The domains of an LRA; all domains while it has no cores assigned."""
        homes = self._homes.get(name)
        return [(d, tick) for d, tick in self._ticks.items() if homes is None or d in homes]

    def _in(self, domain: int, everybody: Mapping[str, _T]) -> dict[str, _T]:
        return {
            name: each
            for name, each in everybody.items()
            if name not in self._homes or domain in self._homes[name]
        }
