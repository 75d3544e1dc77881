"""Domain values survive JSON; what is not theirs is refused with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.control.limits import ApiLimits
from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Settings
from perphd.domain.capability import Capability
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Decision, Prediction
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import ChangeSet, Stage, Write
from perphd.domain.reading import Unavailable
from perphd.domain.sample import READINGS, Quality, Sample
from perphd.domain.status import AgentStatus
from perphd.domain.topology import Topology
from perphd.domain.wire import WireError, decode, encode
from perphd.domain.workload import SliSpec
from perphd.isolation.restore_report import RestoreReport
from tests.unit.control_fake import CAPABILITIES, TOPOLOGY, Served, decision


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(encode(value), allow_nan=False))


def comes_back(hint: Any, value: Any) -> None:
    assert decode(hint, through_json(value)) == value


readings = st.one_of(st.floats(allow_nan=False), st.builds(Unavailable, st.text()))
samples = st.builds(
    Sample,
    workload=st.text(),
    at_s=st.floats(0, 1e9),
    interval_s=st.floats(0, 100),
    quality=st.lists(st.sampled_from(Quality), max_size=3).map(tuple),
    **dict.fromkeys(READINGS, readings),
)
pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**20)), max_size=3).map(tuple)
cpusets = st.builds(CpuSet, st.integers(0, 2**70))
all_settings = st.builds(
    Settings,
    cpus=st.one_of(st.just(KEEP), cpusets),
    cpu_weight=st.one_of(st.just(KEEP), st.just(IDLE), st.integers(1, 10000)),
    cpu_max_cores=st.one_of(st.just(KEEP), st.floats(0.1, 100)),
    memory_low_bytes=st.one_of(st.just(KEEP), st.integers(0, 2**50)),
    memory_high_bytes=st.one_of(st.just(KEEP), st.just(NO_LIMIT), st.integers(0, 2**50)),
    llc_masks=st.one_of(st.just(KEEP), pairs),
    mba_pct=st.one_of(st.just(KEEP), pairs),
)


@given(samples)
def test_samples(sample: Sample):
    comes_back(Sample, sample)


@given(all_settings)
def test_settings(settings: Settings):
    comes_back(Settings, settings)


def test_keep_is_an_absent_key():
    assert encode(Settings(cpus=CpuSet.of([0, 1, 5]), cpu_weight=IDLE, memory_high_bytes=NO_LIMIT)) == {
        "cpus": "0-1,5",
        "cpu_weight": "idle",
        "memory_high_bytes": "max",
    }
    assert encode(KEEP) == "keep"


def test_everything_the_api_sends(tmp_path):
    served = Served(tmp_path, ApiLimits())
    comes_back(AgentStatus, served.agent.status())
    comes_back(tuple[Decision, ...], (decision(1.0), decision(2.0, Action.HOLD)))
    comes_back(tuple[Capability, ...], CAPABILITIES.items)
    comes_back(Topology, TOPOLOGY)
    comes_back(RestoreReport, served.agent.restored)
    change = ChangeSet((Write("pi", "cpus", "/sys/x", "0-1", "0-7", Stage.SHRINK),))
    comes_back(Event, Event(1.0, EventKind.CHANGE, "written", detail=change))
    comes_back(Event, Event(1.0, EventKind.DECISION, "grow", "db", decision(1.0)))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_numbers_without_end(value: float):
    comes_back(Prediction, Prediction(value, -value, 0.0, 1.0))


def test_not_a_number():
    assert math.isnan(decode(Prediction, through_json(Prediction(math.nan, 0, 0, 0))).score)


def test_unknown_keys_are_for_a_newer_client():
    assert decode(SliSpec, {"source": "push", "colour": "red"}) == SliSpec("push")


@pytest.mark.parametrize(
    ("hint", "data", "words"),
    [
        (Sample, {"workload": "x", "at_s": 1.0}, "interval_s is missing"),
        (Sample, {"workload": "x", "at_s": "1", "interval_s": 1}, "at_s: '1' is not a number"),
        (Sample, {"workload": "x", "at_s": True, "interval_s": 1}, "at_s"),
        (Sample, {"workload": "x", "at_s": 1, "interval_s": 1, "mips": {"reason": "x"}}, "mips"),
        (Sample, {"workload": "x", "at_s": 1, "interval_s": 1, "quality": ["odd"]}, r"quality\[0\]: 'odd'"),
        (Settings, {"cpus": "5-"}, "cpus"),
        (Settings, {"cpus": 5}, "cpus"),
        (Settings, {"llc_masks": [[1]]}, "llc_masks"),
        (Settings, [], "an object"),
        (SliSpec, None, "an object"),
        (SliSpec, {"source": 5}, "source: 5 is not text"),
        (tuple[Decision, ...], {}, "a list"),
    ],
)
def test_refusals(hint: Any, data: object, words: str):
    with pytest.raises(WireError, match=words):
        decode(hint, data)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["cpus", "workload", "at_s", "score", "unavailable", "llc_masks"]), inner
        ),
    ),
)


@given(st.sampled_from([Settings, Sample, Decision, AgentStatus, Event, RestoreReport]), json_values)
def test_arbitrary_json_is_refused_or_read(hint: Any, data: object):
    try:
        value = decode(hint, data)
    except WireError:
        return
    assert isinstance(value, hint)


def test_types_without_a_form_are_our_own_mistake():
    with pytest.raises(TypeError, match="as JSON"):
        encode(object())
