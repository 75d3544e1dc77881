"""The ceiling of batch's egress: around any policy, always or while a link is full, and only for who can have it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.admission.baselines import NonePolicy
from perphd.admission.features.egress import EgressCeiling, EgressRule, memory_within
from perphd.agent.composition import POLICIES, _policy
from perphd.config.file import Config, parse
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ConfigError
from perphd.domain.policy import HostView, Policy, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Sample
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, WorkloadSpec

RULE = EgressRule(("eth0", "eth1"), 1_000_000, "saturated", 85.0, 60.0, 30.0)
CEILINGS = (("eth0", 1_000_000), ("eth1", 1_000_000))


class Counting:
    """A policy that counts its calls in its memory, and wants a weight for batch."""

    name = "counting"

    def decide(self, snapshot: Snapshot) -> TargetState:
        return TargetState({"job": Settings(cpu_weight=10)}, memory=(snapshot.memory or 0) + 1)


def snapshot(
    at_s: float, network_pct: Reading, *, lra: bool = True, can: bool = True, memory: object = None
) -> Snapshot:
    sample = Sample("db", at_s, 1.0) if lra else None
    knobs = frozenset({"egress_max"}) if can else frozenset()
    views = (
        WorkloadView(WorkloadSpec("db", Kind.LRA, "/db"), sample, enforceable=knobs),
        WorkloadView(WorkloadSpec("job", Kind.BATCH, "/job"), None, enforceable=knobs),
    )
    host = HostView(Topology((), (), (), CpuSet()), network_pct=network_pct)
    return Snapshot(0, at_s, 1.0, host, views, memory)


def configured(config: Config) -> Policy:
    return _policy(config, POLICIES[config.daemon.policy](config))


def run(rule: EgressRule, *seen: tuple[float, Reading]) -> list[bool]:
    """Whether the ceiling holds after each of these looks at (time, how full the link is)."""
    policy, memory, held = EgressCeiling(Counting(), rule), None, []
    for at_s, pct in seen:
        target = policy.decide(snapshot(at_s, pct, memory=memory))
        memory = target.memory
        held.append(target.settings["job"].egress_max == CEILINGS)
        assert target.settings["job"].cpu_weight == 10, "what the policy within wants stays"
        assert set(target.settings) == {"job"}, "no ceiling for an LRA"
    assert memory is not None
    assert memory.inner == len(seen), "and so does what it remembers"
    return held


def test_what_the_policy_remembers_is_found_below_the_ceiling() -> None:
    target = EgressCeiling(Counting(), RULE).decide(snapshot(1.0, 50.0))
    assert memory_within(target.memory) == Counting().decide(snapshot(1.0, 50.0)).memory
    assert memory_within("another policy's") == "another policy's"


def test_always_means_always() -> None:
    rule = dataclasses.replace(RULE, when="always")
    assert run(rule, (0.0, NOT_MEASURED), (1.0, 0.0)) == [True, True]


def test_it_comes_with_a_full_link_and_goes_when_that_was_free_for_long() -> None:
    seen = [(0.0, 50.0), (1.0, 90.0), (2.0, 70.0), (3.0, 50.0), (30.0, 50.0), (33.0, 50.0), (34.0, 84.0)]
    assert run(RULE, *seen) == [False, True, True, True, True, False, False]


def test_a_link_that_fills_again_meanwhile_starts_the_wait_anew() -> None:
    seen = [(0.0, 90.0), (1.0, 50.0), (20.0, 61.0), (21.0, 50.0), (49.0, 50.0), (51.0, 50.0)]
    assert run(RULE, *seen) == [True, True, True, True, True, False]


def test_what_is_not_measured_changes_nothing() -> None:
    assert run(RULE, (0.0, NOT_MEASURED), (1.0, 90.0), (2.0, NOT_MEASURED)) == [False, True, True]


def test_nobody_to_protect_or_nothing_to_set_it_with_is_no_ceiling() -> None:
    policy = EgressCeiling(Counting(), dataclasses.replace(RULE, when="always"))
    assert policy.decide(snapshot(0.0, 99.0, lra=False)).settings["job"].egress_max is KEEP
    assert policy.decide(snapshot(0.0, 99.0, can=False)).settings["job"].egress_max is KEEP
    assert policy.name == "counting"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(0.0, 100.0)), max_size=30))
def test_it_is_never_taken_away_sooner_than_promised(steps: list[tuple[float, float]]) -> None:
    at_s, full_s = 0.0, -1e9
    seen: list[tuple[float, Reading]] = []
    for step, pct in steps:
        at_s += step
        seen.append((at_s, pct))
    for (when_s, full), held in zip(seen, run(RULE, *seen) if seen else [], strict=True):
        full_s = when_s if isinstance(full, float) and full >= 85.0 else full_s
        if when_s - full_s < 30.0:
            assert held
        if full_s < 0:
            assert not held


def test_it_is_off_until_a_device_and_a_ceiling_are_named() -> None:
    for text in ("", '[network]\ndevices = "eth0"', '[network]\nbatch_egress_max = "10M"'):
        assert not isinstance(configured(parse(text, "f")), EgressCeiling)
    config = parse(
        '[tuning.daemon]\npolicy = "none"\n[network]\ndevices = "eth0, eth1,eth0"\nbatch_egress_max = "10M"',
        "f",
    )
    assert config.network.names == ("eth0", "eth1")
    policy = configured(config)
    assert isinstance(policy, EgressCeiling)
    assert policy.name == NonePolicy().name
    target = policy.decide(snapshot(0.0, NOT_MEASURED))
    assert target.settings["job"].egress_max == (("eth0", 10 << 20), ("eth1", 10 << 20))


@pytest.mark.parametrize("text", ['devices = "eth/0"', 'devices = "a b"', 'batch_egress_max = "1K"'])
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(f"[network]\n{text}", "f")
