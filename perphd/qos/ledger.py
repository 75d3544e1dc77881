"""The ledger of one host: the holdings of each workload with its band, and the amount that copper may still take.

Invariants of every ledger that the functions below return:

    cpus(gold) + cpus(silver) + cpus(system)       <= CPUs of the host
    memory(gold) + memory(silver) + memory(system) <= memory of the host
    cores of two gold workloads are disjoint, and silver uses the cores that gold leaves
    copper is granted at most its offer, and the amount that it may still take is never negative

Copper's offer is measured slack, so it can shrink below the amount that copper holds. ``copper_excess`` is
then the amount that copper must give back. No function takes resources from a protected holder: a grant ends
when ``revoke`` is called for that holder, and a reservation also when its time to live is over.

Several schedulers may use one ledger without a lock (optimistic concurrency). Every change raises the
generation. A request states the generation on which it was computed, and is refused if the ledger has changed
since. Bids for the same generation are collected for a short window; the one with the highest score wins a
reservation, and all others are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias

from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Topology
from perphd.qos.bands import QosBand

BID_WINDOW_S: Final = 0.1
"""Time after the first bid in which further bids compete with it."""
RESERVATION_TTL_S: Final = 10.0
"""Time to live of a reservation that its holder does not commit."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Amounts:
    """Logical CPUs (fractions allowed) and memory."""

    cpus: float = 0.0
    memory_bytes: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpus + other.cpus, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpus - other.cpus, self.memory_bytes - other.memory_bytes)

    def fits(self, room: Amounts) -> bool:
        """True if both resources are at most those of ``room``."""
        return self.cpus <= room.cpus + _ROUNDING and self.memory_bytes <= room.memory_bytes

    def at_least_nothing(self) -> Amounts:
        """The same amounts, with 0 in place of negative values."""
        return Amounts(max(0.0, self.cpus), max(0, self.memory_bytes))

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs and {self.memory_bytes / 2**20:.0f} MiB"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity that may be granted: whole physical cores, grouped by last-level cache, and memory."""

    domains: tuple[tuple[CpuSet, ...], ...]
    memory_bytes: int

    @property
    def cpus(self) -> CpuSet:
        """All CPUs."""
        return _union([core for domain in self.domains for core in domain])

    @property
    def amounts(self) -> Amounts:
        """The whole capacity, as numbers."""
        return Amounts(float(len(self.cpus)), self.memory_bytes)


def capacity_of(topology: Topology) -> Capacity:
    """The capacity of a host; cores outside every last-level cache form a group of their own."""
    cores = [core.cpus for core in topology.usable_cores]
    groups = [tuple(core for core in cores if core <= l3.cpus) for l3 in topology.l3_domains]
    grouped = {core for group in groups for core in group}
    groups.append(tuple(core for core in cores if core not in grouped))
    return Capacity(tuple(group for group in groups if group), topology.memory_bytes)


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """A workload's request, with its band. Gold's CPUs are rounded up to whole cores."""

    holder: str
    band: QosBand
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Holding:
    """A workload's grant or reservation. ``cores``: the cores that it owns; only gold owns cores.

    A reservation is a grant that ends at ``expires_s``, unless its holder commits it by ``token``.
    """

    holder: str
    band: QosBand
    amounts: Amounts
    cores: CpuSet = field(default_factory=CpuSet)
    expires_s: float | None = None
    token: int = 0


@dataclass(frozen=True, slots=True)
class Bid:
    """A request with its scheduler's score; a higher score means that this host suits it better."""

    request: CapacityRequest
    score: float


class RefusalCause(StrEnum):
    """Why a ledger refuses a request."""

    STALE = "stale"  # computed on an earlier generation; read the ledger again
    FULL = "full"  # does not fit
    HELD = "held"  # the holder already has a grant, a reservation or a bid
    UNKNOWN = "unknown"  # no such holder, or its reservation has expired
    OUTBID = "outbid"  # another bid of the same window won
    INVALID = "invalid"  # an empty request, or a negative amount


@dataclass(frozen=True, slots=True)
class LedgerRefusal:
    """A refused request; the ledger is unchanged."""

    holder: str
    cause: RefusalCause
    reason: str


@dataclass(frozen=True, slots=True)
class HostLedger:
    """All grants and reservations in the order in which they were made, and copper's offer.

    ``used``: latest measured use of the protected workloads.
    """

    capacity: Capacity
    generation: int = 0
    grants: tuple[Holding, ...] = ()
    bids: tuple[Bid, ...] = ()
    window_ends_s: float = 0.0
    used: Amounts = Amounts()
    copper_offered: Amounts = Amounts()

    @property
    def reserved(self) -> Amounts:
        """Total held by gold, silver and the system."""
        return _sum([grant.amounts for grant in self.grants if grant.band.protected])

    @property
    def copper_granted(self) -> Amounts:
        """Total held by copper."""
        return _sum([grant.amounts for grant in self.grants if not grant.band.protected])

    @property
    def copper_allocatable(self) -> Amounts:
        """The amount that copper may still take."""
        return (self.copper_offered - self.copper_granted).at_least_nothing()

    @property
    def copper_excess(self) -> Amounts:
        """The amount that copper holds beyond its offer, and must give back."""
        return (self.copper_granted - self.copper_offered).at_least_nothing()

    @property
    def gold_cores(self) -> CpuSet:
        """CPUs that gold workloads own."""
        return _union([grant.cores for grant in self.grants])

    @property
    def shared_cores(self) -> CpuSet:
        """CPUs that silver and the system share."""
        return self.capacity.cpus - self.gold_cores

    def held_by(self, holder: str) -> Holding | None:
        """The grant or reservation of ``holder``; None if there is none."""
        return next((grant for grant in self.grants if grant.holder == holder), None)


LedgerResult: TypeAlias = HostLedger | LedgerRefusal


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a bidding window: the ledger after it, the winner's reservation, and all refusals."""

    ledger: HostLedger
    winner: Holding | None = None
    refused: tuple[LedgerRefusal, ...] = ()


def grant(ledger: HostLedger, request: CapacityRequest, generation: int | None = None) -> LedgerResult:
    """The ledger with ``request`` granted.

    With ``generation``: only if the ledger still has it (compare and swap).
    """
    refusal = _refusal(ledger, request, generation)
    if refusal is not None:
        return refusal
    held = _fitted(ledger, request)
    return held if isinstance(held, LedgerRefusal) else _changed(ledger, grants=(*ledger.grants, held))


def revoke(ledger: HostLedger, holder: str, generation: int | None = None) -> LedgerResult:
    """The ledger without the grant or reservation of ``holder``."""
    if generation is not None and generation != ledger.generation:
        return _stale(ledger, holder, generation)
    if ledger.held_by(holder) is None:
        return LedgerRefusal(holder, RefusalCause.UNKNOWN, f"{holder} holds nothing on this host")
    return _changed(ledger, grants=tuple(held for held in ledger.grants if held.holder != holder))


def measured(ledger: HostLedger, used: Amounts, copper: Amounts) -> HostLedger:
    """The ledger after a measurement: use of the protected workloads, and copper's offer from their slack.

    The offer is cut to the capacity. The generation rises only if the offer changes.
    """
    room = ledger.capacity.amounts
    offered = Amounts(
        min(copper.cpus, room.cpus), min(copper.memory_bytes, room.memory_bytes)
    ).at_least_nothing()
    if offered == ledger.copper_offered:
        return replace(ledger, used=used)
    return replace(_changed(ledger, ledger.grants), used=used, copper_offered=offered)


def bid(ledger: HostLedger, offer: Bid, generation: int, now_s: float) -> LedgerResult:
    """The ledger with one more bid. The first bid opens the window that ``settled`` closes."""
    refusal = _refusal(ledger, offer.request, generation)
    if refusal is not None:
        return refusal
    held = _fitted(ledger, offer.request)
    if isinstance(held, LedgerRefusal):
        return held
    ends_s = ledger.window_ends_s if ledger.bids else now_s + BID_WINDOW_S
    return replace(ledger, bids=(*ledger.bids, offer), window_ends_s=ends_s)


def settled(ledger: HostLedger, now_s: float) -> Settlement:
    """The ledger at ``now_s``: without expired reservations, and with the winner of a window that has closed.

    The highest score among the bids that fit wins; among equal scores, the earliest.
    """
    kept = tuple(held for held in ledger.grants if held.expires_s is None or held.expires_s > now_s)
    if len(kept) < len(ledger.grants):
        ledger = _changed(ledger, kept)
    if not ledger.bids or now_s < ledger.window_ends_s:
        return Settlement(ledger)
    contenders = sorted(ledger.bids, key=lambda each: -each.score)
    ledger, winner, refused = replace(ledger, bids=()), None, []
    for each in contenders:
        holder = each.request.holder
        if winner is not None:
            refused.append(
                LedgerRefusal(holder, RefusalCause.OUTBID, f"{winner.holder} had the higher score")
            )
            continue
        held = _fitted(ledger, each.request)
        if isinstance(held, LedgerRefusal):
            refused.append(held)
            continue
        winner = replace(held, expires_s=now_s + RESERVATION_TTL_S, token=ledger.generation + 1)
    if winner is not None:
        ledger = _changed(ledger, (*ledger.grants, winner))
    return Settlement(ledger, winner, tuple(refused))


def commit(ledger: HostLedger, holder: str, token: int, now_s: float) -> LedgerResult:
    """The ledger with the reservation of ``holder`` made a grant.

    Changes since the reservation do not matter.
    """
    reserved = ledger.held_by(holder)
    if reserved is None or reserved.expires_s is None or reserved.expires_s <= now_s:
        return LedgerRefusal(
            holder, RefusalCause.UNKNOWN, f"{holder} has no reservation on this host, or it has expired"
        )
    if reserved.token != token:
        return LedgerRefusal(
            holder, RefusalCause.STALE, f"the reservation of {holder} is number {reserved.token}, not {token}"
        )
    committed = replace(reserved, expires_s=None)
    return _changed(ledger, tuple(committed if held is reserved else held for held in ledger.grants))


def violations(ledger: HostLedger) -> tuple[str, ...]:
    """Descriptions of all invariants that ``ledger`` breaks; empty for every ledger that this module returns."""
    room, reserved = ledger.capacity.amounts, ledger.reserved
    found = [] if reserved.fits(room) else [f"{reserved} are reserved, but the host has only {room}"]
    owned = CpuSet()
    for held in ledger.grants:
        if held.band is QosBand.GOLD and len(held.cores) + _ROUNDING < held.amounts.cpus:
            found.append(f"{held.holder} owns {len(held.cores)} CPUs, but was granted {held.amounts.cpus:g}")
        if held.band is not QosBand.GOLD and held.cores:
            found.append(f"{held.holder} owns cores, which {held.band} must not")
        if owned & held.cores:
            found.append(f"{held.holder} owns cores of another gold workload: {owned & held.cores}")
        owned = owned | held.cores
    shared = sum(held.amounts.cpus for held in ledger.grants if held.band in (QosBand.SILVER, QosBand.SYSTEM))
    if shared > len(ledger.shared_cores) + _ROUNDING:
        found.append(f"{shared:g} CPUs are guaranteed, but only {len(ledger.shared_cores)} are shared")
    if (
        not ledger.copper_offered.fits(room)
        or ledger.copper_offered.at_least_nothing() != ledger.copper_offered
    ):
        found.append(f"copper is offered {ledger.copper_offered}, but the host has {room}")
    return tuple(found)


def _refusal(ledger: HostLedger, request: CapacityRequest, generation: int | None) -> LedgerRefusal | None:
    """Why ``request`` is refused regardless of the free capacity; None if it is not."""
    holder, wanted = request.holder, request.amounts
    if generation is not None and generation != ledger.generation:
        return _stale(ledger, holder, generation)
    if wanted.cpus < 0 or wanted.memory_bytes < 0 or wanted == Amounts():
        return LedgerRefusal(holder, RefusalCause.INVALID, f"{holder} asks for {wanted}")
    if ledger.held_by(holder) is not None or any(each.request.holder == holder for each in ledger.bids):
        return LedgerRefusal(
            holder, RefusalCause.HELD, f"{holder} already has a grant, a reservation or a bid on this host"
        )
    return None


def _stale(ledger: HostLedger, holder: str, generation: int) -> LedgerRefusal:
    return LedgerRefusal(
        holder,
        RefusalCause.STALE,
        f"the ledger's generation is {ledger.generation}, not {generation}: read it again",
    )


def _fitted(ledger: HostLedger, request: CapacityRequest) -> Holding | LedgerRefusal:
    """The grant of ``request``, if the host has room for it; else a refusal."""
    if request.band is QosBand.COPPER:
        if request.amounts.fits(ledger.copper_allocatable):
            return Holding(request.holder, request.band, request.amounts)
        return _full(request, ledger.copper_allocatable, "are left for copper")
    room = ledger.capacity.amounts - ledger.reserved
    if request.band is not QosBand.GOLD:
        if request.amounts.fits(room):
            return Holding(request.holder, request.band, request.amounts)
        return _full(request, room, "are not reserved")
    cores = _whole_cores(ledger, request.amounts.cpus)
    amounts = replace(request.amounts, cpus=float(len(cores)))
    if len(cores) + _ROUNDING >= request.amounts.cpus and amounts.fits(room):
        return Holding(request.holder, request.band, amounts, cores)
    return _full(request, room, "are not reserved")


def _full(request: CapacityRequest, room: Amounts, words: str) -> LedgerRefusal:
    text = f"{request.holder} asks for {request.amounts} in {request.band}, but only {room} {words}"
    return LedgerRefusal(request.holder, RefusalCause.FULL, text)


def _whole_cores(ledger: HostLedger, cpus: float) -> CpuSet:
    """Free physical cores with at least ``cpus`` CPUs, or all free ones.

    They come from one cache if one has enough free cores: from the one with the fewest of these. Otherwise
    the caches with the most free cores come first.
    """
    owned = ledger.gold_cores
    free = [[core for core in domain if not core & owned] for domain in ledger.capacity.domains]
    enough = [cores for cores in free if sum(map(len, cores)) + _ROUNDING >= cpus]
    if enough:
        order = min(enough, key=len)
    else:
        order = [core for cores in sorted(free, key=len, reverse=True) for core in cores]
    taken: list[CpuSet] = []
    for core in order:
        if sum(map(len, taken)) + _ROUNDING >= cpus:
            break
        taken.append(core)
    return _union(taken)


def _changed(ledger: HostLedger, grants: tuple[Holding, ...]) -> HostLedger:
    return replace(ledger, grants=grants, generation=ledger.generation + 1)


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    return sum(amounts, Amounts())


def _union(sets: Sequence[CpuSet]) -> CpuSet:
    union = CpuSet()
    for each in sets:
        union = union | each
    return union
