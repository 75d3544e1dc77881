"""The bench of the batch queue: its generator, and that it runs every policy to the end without losing a job."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perphd.domain.workload import Mode
from perphd.forecast.histogram import share_to
from perphd.sim.node.load import Diurnal
from tools.bench.batch_queue import host_day, host_rules
from tools.bench.batch_queue.jobs import GIB, SLACKS, generated
from tools.bench.batch_queue.node import BATCH_SHARE, Node, Policy
from tools.bench.batch_queue.spread import ratio_interval

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


def test_the_generator_makes_some_jobs_much_shorter_than_their_history() -> None:
    def early(overestimated: float) -> float:
        work = generated(3, 8.0, 1.4, CPUS, MEMORY, overestimated=overestimated)
        return float(
            np.mean([share_to(work.past[each.kind].run_s, each.run_s) < 0.01 for each in work.works])
        )

    assert early(0.0) < 0.05
    assert 0.15 < early(0.3) < 0.4


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


def test_published_point_estimates_do_not_try_a_job_that_they_rule_out() -> None:
    """Half of a job's history is longer than its median, so that some deadlines are before it."""
    work = generated(1, 0.5, 0.5, CPUS, MEMORY)
    published, handled = (
        Node(policy, work, CPUS, MEMORY).run(1800.0) for policy in (Policy.POINT, Policy.NO_DISTRIBUTION)
    )
    assert published.missed > handled.missed


def test_predictions_are_compared_from_the_stated_time_on() -> None:
    work = generated(1, 0.4, 1.0, CPUS, MEMORY)
    whole, late, never = (
        sum(
            Node(Policy.DISTRIBUTION, work, CPUS, MEMORY, judged_after_s=after_s)
            .run(900.0)
            .cpu_reliability.counts
        )
        for after_s in (0.0, 720.0, 1e6)
    )
    assert whole > late > never == 0


def test_a_day_on_the_simulated_host_runs_jobs_and_judges_lras() -> None:
    with_jobs = host_day.day(2, Mode.ENFORCE, hours=0.2)
    alone = host_day.day(2, Mode.ENFORCE, with_jobs=False, hours=0.2)
    assert alone.on_target == {"db": 1.0, "web": 1.0}
    assert set(with_jobs.on_target) == {"db", "web"}
    assert 0 < with_jobs.done <= with_jobs.jobs
    assert with_jobs.busy > alone.busy
    assert with_jobs.missed <= with_jobs.slo


def test_an_interval_over_seeds_is_wide_where_seeds_differ() -> None:
    low, high = ratio_interval([1, 2, 1, 2] * 5, [10] * 20)
    assert 0.12 < low < 0.15 < high < 0.18
    narrow = high - low
    low, high = ratio_interval([0, 0, 6, 0] * 5, [10] * 20)
    assert low < 0.15 < high
    assert high - low > 2 * narrow
    assert ratio_interval([1, 1], [10, 10]) == (0.0, 1.0), "two seeds tell nothing of their spread"
    assert ratio_interval([0, 3, 0, 3], [0, 6, 0, 6]) == (0.0, 1.0)
    assert ratio_interval([3] * 9, [6] * 9) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("rule", [host_rules.static_reservation, host_rules.suppression])
def test_a_day_by_a_simple_rule_accounts_for_its_jobs(rule: Callable[[], host_rules.Rule]) -> None:
    found = host_rules.day_by(rule(), 2, 0.3)
    work = host_day.day_jobs(2, 0.3)
    assert found.jobs == len(work.works) == 25
    assert 0 < found.done < found.jobs
    due = [each for each in work.works if (each.spec.deadline_s or 1e9) <= 0.3 * 3600.0]
    assert found.slo == len(due)
    assert 0 <= found.missed <= found.slo
    assert found.on_target == {"db": 1.0, "web": 1.0}


def test_suppression_gives_batch_what_lras_leave_of_its_share() -> None:
    quiet, loud = (host_day.day_host(Diurnal(factor, factor)) for factor in (0.1, 1.2))
    for host in (quiet, loud):
        host.advance(60.0)
    rule = host_rules.suppression()
    assert rule.threads(quiet) > rule.threads(loud) >= host_rules.LEAST_THREADS
    assert rule.threads(quiet) <= BATCH_SHARE * host_day.THREADS
