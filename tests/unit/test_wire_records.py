"""What the store keeps of decisions is what they were."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Allocation, CpuGrant, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import (
    Action,
    Candidate,
    Cause,
    Decision,
    Evidence,
    Health,
    Outcome,
    Prediction,
    Verdict,
)
from perphd.domain.reading import Unavailable
from perphd.domain.wire import WireError, from_json, to_json

FLOATS = st.floats(allow_nan=False)
TEXT = st.text(max_size=20)
READING = st.one_of(FLOATS, st.builds(Unavailable, TEXT))
WEIGHT = st.one_of(st.integers(1, 10000), st.just(IDLE))
GRANT = st.builds(CpuGrant, st.integers(1, 64), st.integers(0, 64), WEIGHT, st.booleans())
ALLOCATION = st.builds(Allocation, GRANT, st.integers(0, 2**40), st.integers(0, 20), st.integers(10, 100))
EVIDENCE = st.builds(Evidence, TEXT, READING, READING, TEXT, TEXT)
VERDICT = st.builds(
    Verdict,
    st.sampled_from(Health),
    st.sampled_from(Cause),
    FLOATS,
    st.lists(EVIDENCE, max_size=3).map(tuple),
    st.one_of(st.none(), TEXT),
)
CANDIDATE = st.builds(
    Candidate, ALLOCATION, st.builds(Prediction, FLOATS, FLOATS, FLOATS, FLOATS), FLOATS, TEXT
)
DECISION = st.builds(
    Decision,
    FLOATS,
    TEXT,
    VERDICT,
    st.sampled_from(Action),
    READING,
    READING,
    ALLOCATION,
    ALLOCATION,
    st.lists(CANDIDATE, max_size=3).map(tuple),
    TEXT,
    TEXT,
    to_best=st.booleans(),
    target_provisional=st.booleans(),
)


@given(DECISION)
def test_decisions_come_back_as_they_were(decision: Decision):
    assert from_json(to_json(decision), Decision) == decision


@given(DECISION)
def test_decisions_of_before_a_field_are_read(decision: Decision):
    record = json.loads(to_json(decision))
    del record["to_best"], record["mode"], record["target_provisional"]
    expected = replace(decision, to_best=False, mode=None, target_provisional=False)
    assert from_json(json.dumps(record), Decision) == expected


@given(st.builds(Outcome, FLOATS, TEXT, FLOATS, READING, READING, st.booleans(), TEXT))
def test_outcomes_come_back_as_they_were(outcome: Outcome):
    assert from_json(to_json(outcome), Outcome) == outcome


def test_settings_with_every_special_value():
    settings = Settings(CpuSet.of([0, 3]), IDLE, 1.5, KEEP, NO_LIMIT, ((0, 15), (2, 240)), KEEP)
    assert from_json(to_json(settings), Settings) == settings


def test_not_a_number_survives():
    assert math.isnan(from_json(to_json(Prediction(math.nan, -math.inf, math.inf, 1.0)), Prediction).score)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"score":"much"}',
        '{"score":1,"lower":1,"upper":1,"support":true}',
        '{"what":1}',
        "{",
    ],
)
def test_foreign_records_are_refused(text: str):
    with pytest.raises(WireError):
        from_json(text, Prediction)


def test_values_outside_the_domain_are_a_defect_of_the_caller():
    with pytest.raises(TypeError):
        to_json(object())
