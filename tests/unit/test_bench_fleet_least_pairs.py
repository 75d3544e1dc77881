"""The pairing of least sum by kinds of tenants beside the product's, tenant by tenant."""

from __future__ import annotations

import numpy as np
import pytest

from perphd.forecast.peaks import HostUsage, Tenant, matched
from tests.unit.cluster_world import used_together
from tools.bench.fleet.least_pairs import least_pairs

pytest.importorskip("highspy")


@pytest.mark.parametrize("seed", range(12))
def test_kinds_give_the_sum_of_the_tenants_own_pairing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = "abcde"
    usage = used_together(
        {(a, b): float(rng.uniform(0.1, 1.0)) for n, a in enumerate(names) for b in names[n:]}
    )
    sizes = rng.uniform(0.5, 8.0, 5)
    chosen = rng.integers(0, 5, int(rng.integers(0, 24)))
    none = np.zeros(0)
    tenants = [Tenant(names[n], float(sizes[n]) * (1 + seed % 2 * (n % 2)), none) for n in chosen.tolist()]
    host = HostUsage(tenants, none, usage)
    assert least_pairs(host) == pytest.approx(matched(host), rel=1e-6)
