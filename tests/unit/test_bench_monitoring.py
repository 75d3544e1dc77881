"""The bench of monitoring measures 50 workloads that are all counted, and says what that comes to."""

from __future__ import annotations

from tools.bench import monitoring


def test_all_workloads_are_counted_and_the_report_says_so() -> None:
    cost = monitoring.measure(ticks=3, looks=2)
    assert (cost.workloads, cost.domains) == (50, 2)
    assert cost.descriptors == 50 * 2 * 2, "occupancy and total bandwidth of each group in each domain"
    assert cost.read_ms > 0
    assert cost.look_ms > 0
    text = "\n".join(monitoring.table(cost.as_dict()))
    assert "50 workloads on 2 cache domains" in text
    assert monitoring.table(None) == []
