"""An egress ceiling that is configured and cannot be had: the status says so, with the reason."""

from __future__ import annotations

from pathlib import Path

from perphd.config.tables import NetworkConfig
from perphd.domain.workload import Mode
from tests.sim.test_agent_loop import bench


async def limits(state: Path, devices: str, mode: Mode) -> dict[str, list[str]]:
    async with bench(state, mode=mode, network=NetworkConfig(devices, 1_000_000)) as b:
        await b.run(2)
        return {
            item.spec.name: [left.reason for left in item.limited if left.knob == "egress_max"]
            for item in b.agent.status().workloads
        }


async def test_a_configured_ceiling_that_cannot_be_had_is_told_of_batch_alone(tmp_path: Path) -> None:
    found = await limits(tmp_path, "eth0", Mode.ENFORCE)
    assert found["db"] == []
    (reason,) = found["pi"]
    assert "cgroup v2 hierarchy" in reason


async def test_what_nobody_asked_for_is_not_missed(tmp_path: Path) -> None:
    assert await limits(tmp_path, "", Mode.ENFORCE) == {"db": [], "pi": []}
    assert await limits(tmp_path, "eth0", Mode.OBSERVE) == {"db": [], "pi": []}
