"""The resource shaper on real control groups: the lab's experiment, scaled down in memory and time."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from tools.lab.sizing import shaper

pytestmark = [pytest.mark.requires_root]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Every arm's outcome."""
    options = argparse.Namespace(
        seconds=25.0,
        memory=128 << 20,
        interval=1.0,
        period=0.5,
        seed=1,
        arms=list(shaper.ARMS),
        out=tmp_path_factory.mktemp("shaper") / "found.json",
    )
    return {arm["arm"]: arm for arm in shaper.run(options)["arms"]}


@pytest.mark.parametrize("arm", ["observe", "k1-100"])
def test_what_only_proposes_or_keeps_everything_writes_nothing(
    found: dict[str, dict[str, object]], arm: str
) -> None:
    assert found[arm]["files_that_differ"] == 0
    assert found[arm]["writes"] == {}
    assert isinstance(found[arm]["samples"], int)
    assert found[arm]["samples"]


def test_the_pessimistic_plan_leaves_the_kernel_nobody_to_kill(found: dict[str, dict[str, object]]) -> None:
    assert found["pessimistic"]["oom_kills"] == 0
    assert found["pessimistic"]["writes"]


@pytest.mark.parametrize("arm", shaper.ARMS)
def test_everything_is_given_back_after_a_kill(found: dict[str, dict[str, object]], arm: str) -> None:
    assert found[arm]["restored"] is True


def test_nothing_is_left_of_it(found: dict[str, dict[str, object]]) -> None:
    assert found
    tree = Path("/sys/fs/cgroup")
    assert not [*tree.glob(f"perphd-lab-*-{os.getpid()}"), *tree.glob(f"*/perphd-lab-*-{os.getpid()}")]
