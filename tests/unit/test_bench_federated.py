"""A small fleet of the federated bench: quicker than alone, no liar moves a decision out of the honest spread."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perphd.federated.ledger import of_documents
from tools.bench.federated.__main__ import needs, reached
from tools.bench.federated.hosts import ASKED, KINDS, days, fleet
from tools.bench.federated.lies import LIES, LOADS, batch_worth, decisions, lying, places
from tools.bench.federated.meeting import contribution, meet, model

APPLICATIONS, SAMPLES, SEED = 3, 241, 5
HOSTS = fleet(SEED, applications=APPLICATIONS)[:11]


@pytest.fixture(scope="module")
def fleet_of():
    """Errors alone and models of eleven hosts alike, and what each of them contributes."""
    alone, said = {}, []
    for host in HOSTS:
        models = {}
        for a in range(APPLICATIONS):
            met = meet(model("staged", host, None, ""), days(host, a, SEED, SAMPLES), SAMPLES)
            alone[host.name, a], models[f"app-{a}"] = met.squares, met.model
        said.append(contribution(host, models))
    return alone, said


def test_told_hosts_need_a_fifth_of_the_samples(fleet_of):
    alone, said = fleet_of
    ledger = of_documents(said)
    told = [
        meet(model("ogbrt", host, ledger, f"app-{a}"), days(host, a, SEED, 41), 41).squares[:, 1]
        for host in HOSTS
        for a in range(APPLICATIONS)
    ]
    by_itself = np.array([alone[host.name, a][:, 1] for host in HOSTS for a in range(APPLICATIONS)])
    settled = math.sqrt(by_itself[:, [k for k, at in enumerate(ASKED) if 180 <= at < SAMPLES]].mean())
    first, second = reached(by_itself, settled), reached(np.array(told), settled)
    assert first > 0
    assert second <= first / 5


def test_the_settled_error_is_that_of_the_last_part():
    at = np.array(ASKED)
    alone = np.tile(np.where(at < 100, 0.2**2, 0.1**2), (4, 1))
    told = np.full((4, 6), 0.1**2)
    settled, first, second = needs(alone, told)
    assert settled == pytest.approx(0.1)
    assert (first, second) == (100.0, 0.0)


def test_unlike_hardware_under_another_label_is_not_worse_than_alone(fleet_of):
    """The distance says that they are alike, but they are not: the trial must find out."""
    _, said = fleet_of
    ledger = of_documents(said)
    ratios = []
    for host in [h for h in fleet(SEED, applications=APPLICATIONS) if h.kind == 2][:4]:
        for a in range(APPLICATIONS):
            met = days(host, a, SEED, 101)
            claims = meet(model("staged", host, ledger, f"app-{a}", KINDS[0].hardware), met, 101)
            alone = meet(model("staged", host, None, ""), met, 101)
            ratios.append(claims.squares[:, 1].mean() / alone.squares[:, 1].mean())
    assert np.mean(ratios) < 1.1


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_in_ten_stays_within_the_honest_spread(fleet_of, lie):
    _, said = fleet_of
    host, others = HOSTS[0], said[1:]
    rng = np.random.default_rng(0)
    dishonest = of_documents(lying(others, LIES[lie], 10, rng))
    halves = [of_documents(rng.choice(np.array(others, dtype=object), 5, replace=False)) for _ in range(20)]
    among = places(host)
    for a in range(APPLICATIONS):
        usual = decisions(host, a, of_documents(others), among)
        spread = [decisions(host, a, half, among) for half in halves]
        for n, k in enumerate(decisions(host, a, dishonest, among)):
            worth = batch_worth(host, LOADS[n], among)
            honest = [float(worth[each[n]]) for each in (*spread, usual)]
            assert min(honest) - 1e-9 <= worth[k] <= max(honest) + 1e-9
