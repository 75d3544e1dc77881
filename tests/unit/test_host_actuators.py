"""What policies are told of the captured machines."""

from __future__ import annotations

import pytest

from perphd.host.actuators import Actuators, actuators
from tests.unit.rdt_world import World

TENS = tuple(range(10, 101, 10))


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        ("captured", Actuators(11, 1, TENS, 8)),
        ("cdp", Actuators(11, 1, TENS, 8)),
        ("mb-only", Actuators(0, 1, TENS, 8)),
        ("monitoring-only", Actuators(llc_classes=1)),
        ("l2-only", Actuators(llc_classes=4)),
        ("mba-mbps", Actuators(11, 1, (), 8)),
    ],
)
def test_bounds_are_those_of_the_machine(machine: str, found: Actuators) -> None:
    assert actuators(World(machine).open().info) == found


def test_absolute_units_are_no_per_cents() -> None:
    amd = actuators(World("amd").open().info)
    assert amd.mba_levels_pct == ()
    assert amd.llc_ways > 1
