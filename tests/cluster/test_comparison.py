"""The comparison of placements, small: a trace runs on simulated hosts under perphd's publisher and extender."""

from __future__ import annotations

from pathlib import Path

from tools.cluster.control_plane import ControlPlane
from tools.cluster.fleet import SCHEMES, Fleet, table
from tools.cluster.trace import trace_of


def test_a_trace_is_the_same_every_time_and_mixes_kinds() -> None:
    trace = trace_of(1, 50, 150)
    assert trace == trace_of(1, 50, 150)
    assert trace != trace_of(2, 50, 150)
    assert len(trace.lras) == 90
    assert {pod.kind for pod in trace.copper} == {"batch-pi", "batch-stream"}
    assert all(
        before.at_s <= after.at_s for before, after in zip(trace.copper, trace.copper[1:], strict=False)
    )


async def test_pods_run_on_the_hosts_that_the_extender_found(plane: ControlPlane, tmp_path: Path) -> None:
    trace = trace_of(3, 4, 60)
    result = await Fleet(SCHEMES[-1], 4, 3, tmp_path).run(trace, 60)
    assert result.resolved == len(trace.lras) + len(trace.copper)
    assert result.unplaced < len(trace.copper)
    assert result.lra_seconds == 20 * len(trace.lras)  # every LRA was placed
    assert result.calls["filter"]["calls"] >= len(trace.copper)
    assert result.calls["filter"]["errors"] == 0
    assert table([result])[1][0] == "perphd"
