"""Models that start from other hosts' estimates: quicker than alone, never worse, nothing leaks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perphd.federated.ledger import of_documents
from perphd.federated.pooling import Asking
from perphd.predictor import LraModel
from perphd.predictor.federated import ANCHORS, anchors, contributed, pooled, start
from perphd.predictor.model import Observation
from perphd.predictor.persist import ModelFile, Provenance, from_text, ranges_of, to_text
from perphd.predictor.trial import LENGTH, OnTrial
from tools.bench.federated.hosts import HOSTS, Days, days, fleet
from tools.bench.federated.meeting import EXPIRE_S, NOW_S, contribution, meet, model

SAMPLES = 160
ASK_AT = (0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def hosts():
    return fleet(3, applications=3)[:6]


@pytest.fixture(scope="module")
def said(hosts):
    """What five hosts say about three applications."""
    found = []
    for host in hosts[1:]:
        models = {
            f"app-{a}": meet(model("staged", host, None, ""), days(host, a, 3, SAMPLES), SAMPLES).model
            for a in range(3)
        }
        found.append(contribution(host, models))
    return found


def errors(made: LraModel, met: Days, samples: int = 5) -> float:
    squares = meet(made, met, samples).squares
    return math.sqrt(float(np.mean(squares[: len(ASK_AT)])))


@pytest.mark.parametrize("learner", ["staged", "ogbrt", "residual"])
def test_a_host_that_is_told_starts_nearer_than_one_that_is_alone(hosts, said, learner):
    ledger, told, alone = of_documents(said), [], []
    for a in range(3):
        met, made = days(hosts[0], a, 3, 20), model(learner, hosts[0], ledger, f"app-{a}")
        assert made.trials == {"work": True}
        told.append(errors(made, met))
        alone.append(errors(model(learner, hosts[0], None, ""), met))
    assert sum(told) < 0.8 * sum(alone)


def test_a_kind_of_host_that_nobody_is_like_starts_exactly_as_alone(hosts, said):
    other = next(host for host in fleet(3, applications=3) if host.kind == 2)
    met = days(other, 0, 3, 20)
    told = model("ogbrt", other, of_documents(said), "app-0")
    assert told.trials == {}
    assert errors(told, met) == errors(model("ogbrt", other, None, ""), met)


def test_a_wrong_start_is_left_within_the_trial(hosts, said):
    asking = Asking("other", hosts[0].hardware, NOW_S, EXPIRE_S)
    begun = start(pooled(of_documents(said), "app-0", "work", asking), "work", 16, 1.0)
    assert begun is not None
    made = LraModel("staged")
    assert made.begin_told(replace(begun, y=begun.y - 1.0), None)
    met = days(hosts[0], 0, 3, SAMPLES)
    after = meet(made, met, 40)
    assert after.model.trials == {"work": False}
    alone = meet(model("staged", hosts[0], None, ""), met, 40)
    assert np.sqrt(after.squares[-3:].mean()) <= 1.05 * np.sqrt(alone.squares[-3:].mean())


def test_the_winner_stays_after_the_trial_and_in_its_file(hosts, said):
    made = model("ogbrt", hosts[0], of_documents(said), "app-0")
    made = meet(made, days(hosts[0], 0, 3, SAMPLES), LENGTH + 1).model
    assert made.trials == {}
    state = made.to_state()
    assert state.work.told
    assert state.work.staged is not None
    source = Provenance("app-0", "/a", "", "here", 16, "1", NOW_S)
    again = from_text(to_text(ModelFile(source, ranges_of(state), state)))
    resumed = LraModel.from_state(again.state, made._now_s, 0.0, "ogbrt")
    question = days(hosts[0], 0, 3, SAMPLES).questions[100]
    asked = question.allocations, question.context
    assert [b.value for b in resumed.predict_work(*asked)] == pytest.approx(
        [b.value for b in made.predict_work(*asked)], rel=0.02
    )


def test_a_host_passes_on_only_what_it_saw_itself(hosts, said):
    """Else what one host said would come back from every host that started from it."""
    told = model("staged", hosts[0], of_documents(said), "app-0")
    assert isinstance(told._work, OnTrial)
    met = days(hosts[0], 0, 3, SAMPLES)
    alone = meet(model("staged", hosts[0], None, ""), met, 60).model
    after = meet(told, met, 60).model
    mine, same = (contribution(hosts[0], {"app-0": each}) for each in (after, alone))
    assert mine == same
    rows = after.to_state().work.staged
    assert rows is not None
    assert len(rows.labels) <= 60  # the anchors are not among what it remembers


def test_samples_do_not_leave_the_host(hosts):
    """A contribution has one vector of a fixed length per channel, however much was seen."""
    met = days(hosts[0], 0, 3, SAMPLES)
    few = contribution(hosts[0], {"app-0": meet(model("staged", hosts[0], None, ""), met, 20).model})
    many = contribution(hosts[0], {"app-0": meet(model("staged", hosts[0], None, ""), met, SAMPLES).model})
    assert few.statistics == ()  # too few to say anything
    assert [len(each.values) for each in many.statistics] == [ANCHORS]


def test_physics_at_an_anchor_is_that_of_the_asking_host():
    small, large = anchors(4, 1.0, "delay"), anchors(64, 1.0, "delay")
    assert np.array_equal(small[0], large[0], equal_nan=True)
    assert not np.array_equal(small[1], large[1])
    assert (anchors(16, 1.0, "delay")[1] >= 0).all()


def test_a_model_that_has_samples_beside_batch_is_not_started_again(hosts, said):
    asking = Asking("other", hosts[0].hardware, NOW_S, EXPIRE_S)
    begun = start(pooled(of_documents(said), "app-0", "work", asking), "work", 16, 1.0)
    assert begun is not None
    made = meet(model("staged", hosts[0], None, ""), days(hosts[0], 0, 3, SAMPLES), 10).model
    assert not made.begin_told(begun, begun)


def test_delay_is_contributed_and_told_too(hosts):
    """With a latency that grows as work falls."""
    documents = []
    for host in hosts[1:]:
        made = LraModel("staged")
        for seen in days(host, 0, 3, SAMPLES).observations:
            made.observe(with_latency(seen))
        source = Provenance("app", "/a", "", host.name, 16, "1", NOW_S)
        state = made.to_state()
        found = contributed(ModelFile(source, ranges_of(state), state), 1.0)
        assert [each.topic.aspect for each in found] == ["work", "delay"]
        documents.append(replace_statistics(contribution(host, {}), found))
    asking = Asking("other", hosts[0].hardware, NOW_S, EXPIRE_S)
    ledger = of_documents(documents)
    work, delay = (start(pooled(ledger, "app", c, asking), c, 16, 1.0) for c in ("work", "delay"))
    assert work is not None
    assert delay is not None
    told = LraModel("ogbrt")
    assert told.begin_told(work, delay)
    assert told.trials == {"work": True, "delay": True}


def with_latency(seen: Observation) -> Observation:
    work = seen.sample.work_rate_per_s
    assert isinstance(work, float)
    return replace(seen, sample=replace(seen.sample, latency_p95_ms=5.0 * (1000.0 / work) ** 2))


def replace_statistics(document, statistics):
    import msgspec

    return msgspec.structs.replace(document, statistics=statistics)


def test_the_fleet_has_fifty_hosts_of_three_kinds():
    kinds = [host.kind for host in fleet(0)]
    assert len(kinds) == HOSTS
    assert [kinds.count(kind) for kind in range(3)] == [30, 12, 8]
