"""Predictors of a host's peak usage: the greatest demand of all its tenants together.

    Borg default       factor * sum of requests,                                      factor .9
    Resource Central   sum over tenants of the k-th percentile of their own usage,    k = 99
    N-sigma            mean + N * deviation of the host's total usage,                N = 5, a day's samples
    Max                the greatest of these three
    ERO                sum over consecutive pairs of ERO(A, B) * (request_p + request_q); the last tenant of an odd
                       number counts at its full request (Optum, Eq. 8)
    ERO, matched       the same over the pairing of least sum, in which one tenant of an odd number stays alone

Every pairing gives an upper bound if every ERO bounds its pair, so the pairing of least sum is as safe as the
published one. It does not depend on the order of tenants either: with Eq. 8 the removal of a tenant can raise the
prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from perphd.forecast.histogram import Floats
from perphd.forecast.matching import minimum_weight_pairs
from perphd.forecast.usage_profile import UsageProfile, effective_ratio, memory_ratio

BORG_FACTOR: Final = 0.9
CENTRAL_PERCENTILE: Final = 99.0
SIGMAS: Final = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Tenant:
    """One workload of a host: its request, and its usage in the samples of the last period, oldest first.

    A tenant younger than the period has fewer samples. The caller clamps samples to the tenant's limit.
    """

    application: str
    request: float
    usage: Floats


@dataclass(frozen=True, slots=True, eq=False)
class HostUsage:
    """Tenants in the order of arrival, and the host's total usage over the last period, oldest first."""

    tenants: Sequence[Tenant]
    total: Floats
    profile: UsageProfile


PeakPredictor: TypeAlias = Callable[[HostUsage], float]


def borg_default(host: HostUsage, factor: float = BORG_FACTOR) -> float:
    """A fixed share of the sum of requests."""
    return factor * sum(tenant.request for tenant in host.tenants)


def resource_central(host: HostUsage, percentile: float = CENTRAL_PERCENTILE) -> float:
    """The sum of the tenants' own percentiles; a tenant without a sample counts with its request."""
    return sum(
        float(np.percentile(tenant.usage, percentile)) if len(tenant.usage) else tenant.request
        for tenant in host.tenants
    )


def n_sigma(host: HostUsage, sigmas: float = SIGMAS) -> float:
    """Mean plus deviations of the host's total usage; the sum of requests without a sample."""
    if not len(host.total):
        return borg_default(host, 1.0)
    return float(np.mean(host.total) + sigmas * np.std(host.total))


def greatest(host: HostUsage) -> float:
    """The greatest of Borg default, Resource Central and N-sigma."""
    return max(borg_default(host), resource_central(host), n_sigma(host))


def paired(host: HostUsage) -> float:
    """Optum's Eq. 8: consecutive pairs in the order of arrival."""
    tenants = host.tenants
    pairs = sum(
        _pair_usage(host.profile, tenants[i], tenants[i + 1])
        for i in range(0, len(tenants) - len(tenants) % 2, 2)
    )
    return pairs + (tenants[-1].request if len(tenants) % 2 else 0.0)


def matched(host: HostUsage) -> float:
    """Optum's pairs, chosen for the least sum."""
    tenants = host.tenants
    n = len(tenants) + len(tenants) % 2
    weights = np.zeros((n, n))
    for i, first in enumerate(tenants):
        for j in range(i + 1, n):
            alone = j == len(tenants)
            weights[i, j] = weights[j, i] = (
                first.request if alone else _pair_usage(host.profile, first, tenants[j])
            )
    return float(sum(weights[i, j] for i, j in minimum_weight_pairs(weights.tolist())))


def predicted_memory(profile: UsageProfile, requests_bytes: Sequence[tuple[str, float]]) -> float:
    """The host's memory use: stable applications at their greatest utilisation, all others at their request."""
    return sum(memory_ratio(profile, application) * request for application, request in requests_bytes)


def _pair_usage(profile: UsageProfile, first: Tenant, second: Tenant) -> float:
    return effective_ratio(profile, first.application, second.application) * (first.request + second.request)


PREDICTORS: Final[Mapping[str, PeakPredictor]] = {
    "borg": borg_default,
    "resource-central": resource_central,
    "n-sigma": n_sigma,
    "max": greatest,
    "ero": paired,
    "ero-matched": matched,
}
"""All predictors by the names that configuration, commands and metrics use."""
