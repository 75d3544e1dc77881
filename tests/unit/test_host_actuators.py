"""What policies are told of the captured machines."""

from __future__ import annotations

import pytest

from perphd.domain.allocation import Settings
from perphd.host.actuators import Actuators, actuators
from perphd.host.resctrl import wanted_schemata
from rdt import Cell
from tests.unit.rdt_world import World

TENS = tuple(range(10, 101, 10))


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        ("captured", Actuators(11, 1, TENS, 8, llc_shareable=0x600)),
        ("cdp", Actuators(11, 1, TENS, 8, llc_shareable=0x600)),
        ("mb-only", Actuators(0, 1, TENS, 8)),
        ("monitoring-only", Actuators(llc_classes=1)),
        ("l2-only", Actuators(llc_classes=4)),
        ("mba-mbps", Actuators(11, 1, (), 8, llc_shareable=0x600)),
    ],
)
def test_bounds_are_those_of_the_machine(machine: str, found: Actuators) -> None:
    assert actuators(World(machine).open().info) == found


def test_absolute_units_are_no_per_cents() -> None:
    amd = actuators(World("amd").open().info)
    assert amd.mba_levels_pct == ()
    assert amd.llc_ways > 1


def test_with_cdp_code_and_data_get_the_same_mask() -> None:
    """A protection is about whose lines are evicted: both halves of the cache hold lines of both."""
    info = World("cdp").open().info
    target = Settings(llc_masks=((0, 0x0F),), mba_pct=((0, 50),))
    assert dict(wanted_schemata(info, target, "llc_masks").cells()) == {
        Cell("L3CODE", 0): 0x0F,
        Cell("L3DATA", 0): 0x0F,
    }
    assert dict(wanted_schemata(info, target, "mba_pct").cells()) == {Cell("MB", 0): 50}
