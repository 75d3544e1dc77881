"""The bench of the batch queue: its generator, and that it runs every policy to the end without losing a job."""

from __future__ import annotations

import numpy as np
import pytest

from tools.bench.batch_queue.jobs import GIB, SLACKS, generated
from tools.bench.batch_queue.node import Node, Policy

CPUS, MEMORY = 8.0, 32.0 * GIB


def test_the_generator_offers_the_load_and_the_slack_that_it_is_asked_for() -> None:
    work = generated(3, 2.0, 1.4, CPUS, MEMORY)
    offered = sum(each.run_s * each.cpus for each in work.works)
    assert offered == pytest.approx(1.4 * CPUS * 7200.0, rel=0.3)
    slo = [each for each in work.works if each.spec.deadline_s is not None]
    slacks = {round(((each.spec.deadline_s or 0.0) - each.at_s) / each.run_s - 1.0, 6) for each in slo}
    assert slacks <= set(SLACKS)
    assert 0.3 < len(slo) / len(work.works) < 0.7
    inflated = [each.spec.memory_bytes / each.memory_bytes for each in work.works]
    assert np.median(inflated) > 2.0
    assert generated(3, 2.0, 1.4, CPUS, MEMORY).works[5].run_s == work.works[5].run_s


@pytest.mark.parametrize("policy", list(Policy))
def test_every_policy_accounts_for_every_job(policy: Policy) -> None:
    work = generated(1, 0.2, 1.0, CPUS, MEMORY)
    others = (2.0,) * 10 if policy in (Policy.FIFO, Policy.SUPPRESSED) else ()
    found = Node(policy, work, CPUS, MEMORY, others).run(1800.0)
    assert found.slo == sum(each.spec.deadline_s is not None for each in work.works)
    assert found.slo + found.best_effort <= len(work.works)
    assert found.slo + found.best_effort + found.unfinished >= len(work.works)
    assert 0 <= found.missed <= found.slo
    assert found.used_core_s <= CPUS * found.seconds + 1e-6
