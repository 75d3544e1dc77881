"""A set of contributions, at most one per contributor, with withdrawals. Merging is a union.

The newest document of a contributor counts; a withdrawal hides all of its documents up to a generation. Both rules are
maxima, so ``merged`` is commutative, associative and idempotent, and hosts may exchange ledgers in any order and
repeatedly. After the withdrawal of a contribution, everything computed from a ledger is exactly as if it had never
existed, because the ledger keeps no other state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from perphd.federated.contribution import Contribution, Name

EVERY_GENERATION: Final = 2**53
"""A withdrawal up to this generation covers all later documents of the contributor, too."""


class Withdrawal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Documents of ``contributor`` up to generation ``through`` do not count."""

    contributor: Name
    through: Annotated[int, msgspec.Meta(ge=0, le=EVERY_GENERATION)] = EVERY_GENERATION


@dataclass(frozen=True, slots=True)
class ContributionLedger:
    """Newest contribution, and greatest withdrawn generation, by contributor."""

    contributions: Mapping[str, Contribution] = field(default_factory=dict)
    withdrawn: Mapping[str, int] = field(default_factory=dict)

    def counting(self) -> tuple[Contribution, ...]:
        """Contributions that are not withdrawn, by name."""
        return tuple(
            each
            for name, each in sorted(self.contributions.items())
            if each.generation > self.withdrawn.get(name, -1)
        )


def of_documents(
    contributions: Iterable[Contribution], withdrawals: Iterable[Withdrawal] = ()
) -> ContributionLedger:
    """The ledger of these documents, in any order."""
    kept: dict[str, Contribution] = {}
    for each in contributions:
        kept[each.contributor] = _newer(kept.get(each.contributor, each), each)
    hidden: dict[str, int] = {}
    for withdrawal in withdrawals:
        hidden[withdrawal.contributor] = max(withdrawal.through, hidden.get(withdrawal.contributor, -1))
    return ContributionLedger(kept, hidden)


def merged(ledgers: Iterable[ContributionLedger]) -> ContributionLedger:
    """The union of these ledgers."""
    given = list(ledgers)
    return of_documents(
        (each for ledger in given for each in ledger.contributions.values()),
        (Withdrawal(*item) for ledger in given for item in ledger.withdrawn.items()),
    )


def withdraw(
    ledger: ContributionLedger, contributor: str, through: int = EVERY_GENERATION
) -> ContributionLedger:
    """The ledger without this contributor's documents up to a generation."""
    return merged([ledger, ContributionLedger({}, {contributor: through})])


def _newer(one: Contribution, other: Contribution) -> Contribution:
    """The document of the higher generation; of equal generations, the one whose JSON text is greater."""
    if one.generation != other.generation:
        return max(one, other, key=lambda each: each.generation)
    return max(one, other, key=msgspec.json.encode)
