"""Archetypes and programs that ship, and what the loader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind
from perphd.sim.node.archetypes import archetype, names, read
from perphd.sim.node.grant import Grant
from perphd.sim.node.machine import SILVER_4110
from perphd.sim.node.model import Node
from perphd.sim.node.programs import programs

GOOD = """
name = "web"
kind = "lra"
summary = "a service"
source = ["measured"]
threads = 4
[code]
instructions = 1e6
cpi = 0.8
[requests]
rate_per_s = 100
"""


@pytest.mark.parametrize("name", names())
def test_what_ships_loads_and_runs(name: str) -> None:
    found = archetype(name)
    assert found.source
    assert found.assumed  # every one of them has numbers that nobody has published
    one = Node(SILVER_4110, [found.workload]).solve([Grant()]).of(0)
    assert one.work_per_s > 0
    assert one.oom == 0
    if found.workload.kind is Kind.LRA:
        assert 0 < one.p50_ms <= one.p95_ms <= one.p99_ms
        assert one.work_per_s == pytest.approx(one.offered_per_s, rel=1e-6)


def test_the_kinds_are_what_they_are_called() -> None:
    def of(name: str) -> tuple[float, float, float, float]:
        one = Node(SILVER_4110, [archetype(name).workload]).solve([Grant()]).of(0)
        return one.bandwidth_bytes_per_s, one.disk_bytes_per_s, one.net_bytes_per_s, one.usage_cores

    everything = {name: of(name) for name in names() if name.startswith("batch-")}
    assert max(everything, key=lambda name: everything[name][0]) == "batch-stream"
    assert max(everything, key=lambda name: everything[name][1]) == "batch-fio"
    assert max(everything, key=lambda name: everything[name][2]) == "batch-network"
    assert max(everything, key=lambda name: everything[name][3]) == "batch-pi"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("cpi = 0.8", "cpy = 0.8"), "unknown keys cpy"),
        (("cpi = 0.8", "cpi = 0"), "cpi is 0"),
        (("cpi = 0.8", "cpi = true"), "give a finite number"),
        (("cpi = 0.8", "mpki_floor = -1"), "0 or more"),
        (("cpi = 0.8", "smt_speed = 1.5"), "allowed: 0 to 1"),
        (("instructions = 1e6", ""), "lacks instructions"),
        (("rate_per_s = 100", ""), "either clients"),
        (("rate_per_s = 100", "rate_per_s = 100\nclients = 3"), "either clients"),
        (('kind = "lra"', 'kind = "batch"'), "an LRA must have a table"),
        (('kind = "lra"', 'kind = "service"'), '"lra" or "batch"'),
        (('source = ["measured"]', "source = []"), "where the numbers come from"),
        (("threads = 4", "threads = 0"), "a whole number of at least 1"),
        (("threads = 4", "colour = 4"), "unknown keys colour"),
        (('summary = "a service"', ""), "summary must be a text"),
        (('name = "web"', 'name = "www"'), "the name of the file"),
        (("[code]", "[code"), "web.toml"),
    ],
)
def test_what_the_loader_refuses(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = tmp_path / "web.toml"
    path.write_text(GOOD)
    assert read(path).workload.threads == 4
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert told in str(caught.value)
    assert "web.toml" in str(caught.value)


def test_an_unknown_name_is_told_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "web.toml").write_text(GOOD)
    with pytest.raises(ConfigError, match="web"):
        archetype("nosuch", tmp_path)


def test_an_archetype_under_another_name_and_load() -> None:
    work = archetype("xapian").named("search").asked(rate_per_s=10.0)
    assert work.name == "search"
    assert work.requests is not None
    assert work.requests.rate_per_s == 10.0
    with pytest.raises(ValueError, match="has no requests"):
        archetype("batch-pi").workload.asked(clients=1)


def test_programs(tmp_path: Path) -> None:
    assert len(programs()) == 55
    assert programs()["mcf06"].job(4).threads == 4
    broken = tmp_path / "spec.toml"
    broken.write_text("[mcf]\ncpi = 1\n")
    with pytest.raises(ConfigError, match="miss_cycles"):
        programs(broken)
    with pytest.raises(ConfigError):
        programs(tmp_path / "none.toml")
