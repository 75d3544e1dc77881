"""Contributions of hosts: merging in any order, withdrawal, bounds on what one host can do."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.federated.contribution import (
    MAX_BYTES,
    MOST_EVIDENCE,
    Contribution,
    ContributionRefused,
    Statistic,
    Topic,
    from_text,
    to_text,
)
from perphd.federated.hardware import UNLIKE, Hardware, distance, likeness
from perphd.federated.ledger import (
    EVERY_GENERATION,
    ContributionLedger,
    Withdrawal,
    merged,
    of_documents,
    withdraw,
)
from perphd.federated.pooling import (
    ALIKE,
    FAR,
    FAR_AWAY,
    LEAST_JUDGES,
    QUORUM,
    TRIM,
    Asking,
    believed,
    far_from_others,
    pool,
    trimmed,
)

XEON = Hardware("Intel Xeon Gold 6226R", 16, 2.0, 22 * 2**20)
EPYC = Hardware("AMD EPYC 7543", 32, 1.0, 256 * 2**20)
TOPIC = Topic("correction", "mysql", "work", "three points")
NOW = 1.8e9
ASKING = Asking("me", XEON, NOW, 30 * 86400.0)


def statistic(*values: float, evidence: float = 100.0, **more: str) -> Statistic:
    return Statistic(TOPIC, values, (evidence,) * len(values), **more)


def contribution(
    name: str, *values: float, generation: int = 1, made: float = NOW, hardware: Hardware = XEON, **more
) -> Contribution:
    said = (statistic(*values, **more),) if values else ()
    return Contribution(name, generation, made, hardware, said)


finite = st.floats(-2.0, 2.0, allow_nan=False)
documents = st.builds(
    lambda name, generation, values: contribution(name, *values, generation=generation),
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(0, 3),
    st.tuples(finite, finite, finite),
)
withdrawals = st.builds(Withdrawal, st.sampled_from(["a", "b", "c"]), st.integers(0, 4))
ledgers = st.builds(of_documents, st.lists(documents, max_size=6), st.lists(withdrawals, max_size=2))


@given(ledgers, ledgers)
def test_merging_commutes(one, other):
    assert merged([one, other]) == merged([other, one])


@given(ledgers, ledgers, ledgers)
def test_merging_is_associative(one, two, three):
    assert merged([merged([one, two]), three]) == merged([one, merged([two, three])])


@given(ledgers)
def test_merging_is_idempotent(one):
    assert merged([one, one]) == one == merged([one])


@given(st.lists(documents, max_size=8), documents)
def test_a_withdrawal_restores_exactly_what_was_said_without_the_contributor(others, bad):
    others = [each for each in others if each.contributor != bad.contributor]
    before = pool(of_documents(others), TOPIC, 3, ASKING)
    after = pool(withdraw(of_documents([*others, bad]), bad.contributor), TOPIC, 3, ASKING)
    assert np.array_equal(before.value, after.value)
    assert np.array_equal(before.spread, after.spread)
    assert np.array_equal(before.evidence, after.evidence)
    assert before.sources == after.sources


def test_a_later_document_replaces_an_earlier_one_and_passes_a_withdrawal_of_that():
    old, new = contribution("a", 1.0, 1.0, 1.0), contribution("a", 0.5, 0.5, 0.5, generation=2)
    ledger = merged([of_documents([new]), of_documents([old], [Withdrawal("a", 1)])])
    assert ledger.counting() == (new,)
    assert withdraw(ledger, "a").counting() == ()
    assert withdraw(ledger, "a").withdrawn == {"a": EVERY_GENERATION}


def test_a_document_without_statistics_takes_back_what_was_said():
    ledger = of_documents([contribution("a", 1.0, 1.0, 1.0), contribution("a", generation=2)])
    assert pool(ledger, TOPIC, 3, ASKING).sources == ()


@given(
    st.lists(st.tuples(finite, st.floats(1.0, 1e3)), min_size=3, max_size=20),
    st.floats(-100.0, 100.0),
    st.floats(0.0, 1e6),
)
def test_one_host_never_moves_an_estimate_beyond_what_the_others_say(honest, lie, evidence):
    values = np.array([[value] for value, _ in honest] + [[lie]])
    weights = np.array([[weight] for _, weight in honest] + [[evidence]])
    mean, _, clipped = trimmed(values, weights)
    said = [value for value, _ in honest]
    assert min(said) - 1e-9 <= mean[0] <= max(said) + 1e-9
    assert clipped[-1, 0] <= np.sort(weights[:, 0])[-QUORUM]


@given(st.lists(finite, min_size=9, max_size=30), st.data())
def test_a_quarter_of_liars_stays_within_the_honest_range(honest, data):
    liars = data.draw(st.lists(st.floats(-100, 100), max_size=int(len(honest) * TRIM / (1 - TRIM))))
    values = np.array([[v] for v in (*honest, *liars)])
    mean, _, _ = trimmed(values, np.ones_like(values))
    assert min(honest) - 1e-9 <= mean[0] <= max(honest) + 1e-9


@given(st.lists(st.tuples(finite, finite, st.floats(0.1, 10.0)), min_size=3, max_size=12))
def test_values_in_order_at_every_host_stay_in_order(hosts):
    values = np.array([sorted((a, b)) for a, b, _ in hosts])
    weights = np.array([[w, w] for _, _, w in hosts])
    mean, _, _ = trimmed(values, weights)
    assert mean[0] <= mean[1] + 1e-9


def test_two_hosts_say_nothing_because_neither_can_be_outvoted():
    told = pool(of_documents([contribution("a", 1.0), contribution("b", 1.0)]), TOPIC, 1, ASKING)
    assert told.value.tolist() == told.evidence.tolist() == [0.0]
    assert told.hosts.tolist() == [2]


def test_who_counts_and_who_does_not_is_said():
    ledger = of_documents(
        [
            contribution("a", 0.1), contribution("b", 0.2), contribution("c", 0.3, made=NOW - 60.0),
            contribution("old", 9.0, made=NOW - 31 * 86400.0), contribution("early", 9.0, made=NOW + 7200.0),
            contribution("epyc", 9.0, hardware=EPYC), contribution("me", 9.0),
            contribution("other", 9.0, counted_by="mysql"), contribution("short", 9.0, 9.0),
            contribution("liar", 9.0),
        ],
        [Withdrawal("liar")],
    )  # fmt: skip
    told = pool(ledger, TOPIC, 1, ASKING)
    assert [source.contributor for source in told.sources] == ["a", "b", "c"]
    assert [source.age_s for source in told.sources] == [0.0, 0.0, 60.0]
    assert sum(source.share for source in told.sources) == pytest.approx(1.0)
    assert told.value[0] == pytest.approx(0.2)
    assert {left.contributor: left.reason for left in told.left_out} == {
        "old": "expired", "early": "dated 2.0 hours in the future: check the clock of early",
        "epyc": "unlike hardware", "me": "own",
        "other": "its work is counted by mysql", "short": "2 points instead of 1", "liar": "withdrawn",
    }  # fmt: skip


def test_likeness_falls_with_distance():
    bigger = msgspec.structs.replace(XEON, cores=32, l3_bytes=44 * 2**20)
    sibling = msgspec.structs.replace(XEON, cpu="Intel Xeon Silver 4314")
    assert distance(XEON, XEON) == 0.0
    assert distance(XEON, bigger) == distance(bigger, XEON) == pytest.approx(0.5)
    assert distance(XEON, sibling) == pytest.approx(0.5)
    for unknown in ("", " ", "\t \n"):
        assert distance(XEON, msgspec.structs.replace(XEON, cpu=unknown)) == 1.0
        assert (
            distance(msgspec.structs.replace(XEON, cpu=unknown), msgspec.structs.replace(XEON, cpu="")) == 0.0
        )
    assert distance(XEON, msgspec.structs.replace(XEON, threads_per_core=1.0)) == 1.0
    assert distance(XEON, msgspec.structs.replace(XEON, l3_bytes=0)) == 0.5
    assert distance(XEON, EPYC) >= UNLIKE
    assert [likeness(d) for d in (0.0, 1.0, UNLIKE, 9.0)] == [1.0, 0.25, 0.0, 0.0]


def test_another_version_of_the_application_counts_less():
    same = of_documents([contribution(n, 1.0, version="8.0") for n in "abc"])
    other = of_documents([contribution(n, 1.0, version="8.4") for n in "abc"])
    one = pool(same, TOPIC, 1, ASKING, version="8.0")
    assert one.evidence[0] > pool(other, TOPIC, 1, ASKING, version="8.0").evidence[0] > 0
    assert pool(other, TOPIC, 1, ASKING).evidence[0] == one.evidence[0]


def test_a_document_survives_its_text():
    document = contribution("node-1.example", 0.25, -0.5, version="8.0")
    assert from_text(to_text(document)) == document


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.replace(b"0.25", b"0.26"), "checksum"),
        (lambda t: t[:-20], "not a contribution"),
        (lambda t: t.replace(b"perphd-contribution-1", b"perphd-contribution-9"), "this perphd reads"),
        (lambda t: b"[" * 100_000, "not a contribution"),
        (lambda t: t + b" " * MAX_BYTES, "exceed the limit"),
        (lambda t: b'{"format": "\xff"}', "not a contribution"),
    ],
)
def test_a_damaged_document_is_refused(change, said):
    with pytest.raises(ContributionRefused, match=said):
        from_text(change(to_text(contribution("a", 0.25))))


@pytest.mark.parametrize(
    "document",
    [
        contribution("a", 1e9),
        contribution("a", float("nan")),
        contribution("a", 0.1, evidence=-1.0),
        contribution("../etc/passwd", 0.1),
        contribution("a\n", 0.1),
        contribution("a", 0.1, made=-1.0),
        contribution("a", 0.1, hardware=Hardware("x", 0)),
    ],
)
def test_a_document_out_of_bounds_is_not_written(document):
    with pytest.raises(ContributionRefused):
        to_text(document)


def test_a_document_that_nobody_would_read_is_not_written():
    said = tuple(
        Statistic(Topic("correction", f"app-{n}", "work", "p"), (0.1234,) * 256, (12.34,) * 256)
        for n in range(512)
    )
    with pytest.raises(ContributionRefused, match="exceed the limit"):
        to_text(Contribution("a", 1, NOW, XEON, said))


def test_inconsistent_documents_are_refused():
    uneven = Contribution("a", 1, NOW, XEON, (Statistic(TOPIC, (1.0, 2.0), (1.0,)),))
    twice = Contribution("a", 1, NOW, XEON, (statistic(1.0), statistic(2.0)))
    for document, said in ((uneven, ": 2 values"), (twice, " is given twice")):
        with pytest.raises(ContributionRefused, match=f"correction of mysql{said}"):
            from_text(to_text(document))


def test_an_empty_ledger_says_nothing():
    told = pool(ContributionLedger(), TOPIC, 3, ASKING)
    assert told.value.tolist() == [0.0, 0.0, 0.0]
    assert told.sources == ()


@given(st.integers(10, 60), st.floats(-100.0, 100.0), st.randoms(use_true_random=False))
def test_one_host_in_ten_that_claims_all_evidence_stays_within_the_honest_range(count, lie, random):
    liars = count // 10
    said = [
        contribution(f"h{n}", *(random.uniform(-1, 1) for _ in range(3)), evidence=random.uniform(1, 1000))
        for n in range(count - liars)
    ]
    told = [contribution(f"liar{n}", lie, lie, lie, evidence=MOST_EVIDENCE) for n in range(liars)]
    found = pool(of_documents([*said, *told]), TOPIC, 3, ASKING)
    honest = np.array([each.statistics[0].values for each in said])
    assert (found.value >= honest.min(0) - 1e-9).all()
    assert (found.value <= honest.max(0) + 1e-9).all()


@pytest.mark.parametrize("evidence", [0.5, MOST_EVIDENCE])
def test_a_host_that_is_far_from_the_others_is_left_out_as_if_it_had_said_nothing(evidence):
    said = [contribution(f"h{n}", 0.1 * n, -0.1 * n, 0.5) for n in range(9)]
    liar = contribution("liar", 3.0, -3.0, 0.5, evidence=evidence)
    found, without = (pool(of_documents(each), TOPIC, 3, ASKING) for each in ([*said, liar], said))
    assert [(left.contributor, left.reason) for left in found.left_out] == [("liar", FAR_AWAY)]
    assert found.value.tolist() == without.value.tolist()
    assert found.evidence.tolist() == without.evidence.tolist()
    assert found.sources == without.sources


def test_too_few_hosts_cannot_tell_who_is_far():
    said = [contribution(f"h{n}", 0.0) for n in range(LEAST_JUDGES - 2)]
    found = pool(of_documents([*said, contribution("liar", 3.0)]), TOPIC, 1, ASKING)
    assert len(found.sources) == LEAST_JUDGES - 1
    assert found.value[0] == 0.0


@given(
    st.lists(st.tuples(*[st.floats(0.0, FAR * ALIKE)] * 3), min_size=5, max_size=30),
    st.lists(st.tuples(*[st.floats(-100, 100)] * 3), max_size=30),
    st.floats(0.0, 1e6),
)
def test_no_minority_can_have_an_honest_host_left_out(honest, lies, evidence):
    lies = lies[: (len(honest) - 1) // 2]
    values = np.array([*honest, *lies])
    claimed = np.vstack([np.ones((len(honest), 3)), np.full((len(lies), 3), evidence)])
    assert not far_from_others(values, claimed, np.ones(len(values)))[: len(honest)].any()


def test_a_point_that_only_some_of_the_hosts_know_does_not_count():
    known, unknown = statistic(0.5, 0.5, 0.5), Statistic(TOPIC, (0.5, 0.5, 0.0), (9.0, 9.0, 0.0))
    hosts = [Contribution(f"h{n}", 1, NOW, XEON, (known if n < 4 else unknown,)) for n in range(6)]
    found = pool(of_documents(hosts), TOPIC, 3, ASKING)
    assert found.hosts.tolist() == [6, 6, 0]
    assert found.value.tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert believed(np.array([[1.0, 0.0], [4.0, 0.0], [1e6, 3.0]])).tolist() == [[1, 0], [4, 0], [4, 0]]
