"""Back-off from links: what connections and devices say, and what follows for batch."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perphd.agent.devices.backoff import DeviceBackoff
from perphd.agent.devices.links import ContendedLinks
from perphd.config.file import parse
from perphd.config.host_check import remarks
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.errors import Denied
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.fs import RealFs
from perphd.host.link_use import device_addresses, link_speed, plain_address, sent_bytes
from perphd.host.sock_diag import Connection, tcp_connections
from perphd.qos.contention import MAX_ROUNDS

SPECS = (WorkloadSpec("db", Kind.LRA, "/db"), WorkloadSpec("copy", Kind.BATCH, "/copy"))
HERE = socket.inet_aton("10.9.0.1")
MAPPED = bytes(10) + b"\xff\xff" + HERE
LINE = "{name:>6}: 1 2 0 0 0 0 0 0 {sent} 4 0 0 0 0 0 0\n"


def test_bytes_sent_speeds_and_addresses(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(
        "Inter-|   Receive\n face |bytes\n" + LINE.format(name="eth0", sent=77)
    )
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/speed").write_text("1000\n")
    (tmp_path / "sys/class/net/veth1").mkdir()
    (tmp_path / "sys/class/net/veth1/speed").write_text("10000\n")
    fs = RealFs(str(tmp_path))
    assert sent_bytes(fs) == {"eth0": 77}
    assert link_speed(fs, "eth0") == 125e6
    assert link_speed(fs, "veth1") == 0.0, "a virtual device's speed is nobody's"
    assert plain_address(MAPPED) == HERE == plain_address(HERE)
    assert device_addresses()[socket.inet_aton("127.0.0.1")] == "lo"


def test_a_connection_of_this_process_is_found_with_what_was_acknowledged() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        other, _ = server.accept()
        with other:
            client.sendall(bytes(5000))
            got = 0
            while got < 5000:
                got += len(other.recv(5000))
            mine = [each for each in tcp_connections() if plain_address(each.address) == b"\x7f\x00\x00\x01"]
            assert any(5000 <= each.acked_bytes <= 5001 for each in mine)


class Link:
    """One link of 10 MB/s that batch can take from the database; time goes on in seconds."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "proc/net").mkdir(parents=True)
        for name in ("db", "copy", "copy/worker"):
            (tmp_path / "cgroup" / name).mkdir(parents=True)
            (tmp_path / "cgroup" / name / "cgroup.procs").touch()
        self.root, self.now_s, self.sent = tmp_path, 0.0, 0
        unified = SimpleNamespace(path=lambda *parts: "/cgroup" + "/".join(("", *parts)).replace("//", "/"))
        hierarchies: Any = SimpleNamespace(unified=unified)
        self.acked = {"db": 0, "copy/worker": 0}
        self.busy_us = {"db": 0, "copy/worker": 0}
        self.refused = False
        links = ContendedLinks(
            RealFs(str(tmp_path)), hierarchies, ("eth0",), 0.85, self.connections, lambda: {HERE: "eth0"}
        )
        self.backoff = DeviceBackoff([links])

    def connections(self) -> list[Connection]:
        if self.refused:
            raise Denied("sock_diag(7)", "list connections", 1)
        return [
            Connection(
                name.encode(),
                MAPPED,
                (self.root / "cgroup" / name).stat().st_ino,
                self.acked[name],
                self.busy_us[name],
            )
            for name in self.acked
        ]

    def second(self, waits: float = 1.0, **rates: float) -> list[tuple[str, str]]:
        self.now_s += 1.0
        for name, rate in (("db", rates["db"]), ("copy/worker", rates.get("copy", 0.0))):
            self.acked[name] += int(rate)
            self.busy_us[name] += int(1e6 * (waits if name == "db" else 1.0))
            self.sent += int(rate)
        (self.root / "proc/net/dev").write_text(LINE.format(name="eth0", sent=self.sent))
        samples = {spec.name: Sample(spec.name, self.now_s, 1.0, cpu_usage_cores=2.0) for spec in SPECS}
        return self.backoff.step(self.now_s, SPECS, samples)


def contended(tmp_path: Path, waits: float = 1.0) -> Link:
    link = Link(tmp_path)
    for _ in range(6):
        link.second(db=9e6)
    for _ in range(4):
        link.second(waits, db=0.5e6, copy=9.5e6)
    return link


def test_the_culprit_gets_an_egress_ceiling_and_the_database_none(tmp_path: Path) -> None:
    link = contended(tmp_path)
    (row,) = link.backoff.rows()
    assert (row.kind, row.device, row.round) == ("link", "eth0", 1)
    assert [each.workload for each in row.restrictions] == ["copy"]
    ceilings = link.backoff.over("copy", UNTOUCHED).egress_max
    assert isinstance(ceilings, tuple)
    ((device, rate),) = ceilings
    assert device == "eth0"
    assert 0.1 * 9.5e6 <= rate <= 0.3 * 9.5e6
    assert rate % 1000 == 0
    lower = Settings(egress_max=(("eth0", 20_000), ("eth1", 30_000)))
    assert link.backoff.over("copy", lower) == lower, "a lower one that is wanted stays"
    assert link.backoff.over("db", UNTOUCHED) == UNTOUCHED


def test_within_three_rounds_the_database_has_its_link_back(tmp_path: Path) -> None:
    link = Link(tmp_path)
    for _ in range(6):
        link.second(db=9e6)
    told: list[str] = []
    rates = []
    while not told or told[-1].startswith("round"):
        wanted = link.backoff.over("copy", UNTOUCHED).egress_max
        copied = dict(wanted).get("eth0", 9.5e6) if isinstance(wanted, tuple) else 9.5e6
        rates.append(10e6 - copied)
        told += [text for _, text in link.second(db=10e6 - copied, copy=copied)]
    assert len(told) <= 1 + MAX_ROUNDS
    assert "recovered" in told[-1]
    assert max(rates) >= 0.9 * 9e6
    assert link.backoff.over("copy", UNTOUCHED) == UNTOUCHED


@pytest.mark.parametrize("case", ["it does not wait", "the link is not full", "it cannot be asked"])
def test_a_database_that_lacks_nothing_is_no_victim(tmp_path: Path, case: str) -> None:
    link = contended(tmp_path, waits=0.2) if case == "it does not wait" else Link(tmp_path)
    if case != "it does not wait":
        for _ in range(6):
            link.second(db=9e6)
        link.refused = case == "it cannot be asked"
        for _ in range(6):
            link.second(db=0.5e6, copy=9.5e6 if link.refused else 1e6)
    assert link.backoff.rows() == ()


def test_a_link_of_unknown_speed_that_never_sent_much_is_never_full(tmp_path: Path) -> None:
    link = Link(tmp_path)
    for _ in range(6):
        link.second(db=2e6)
    for _ in range(6):
        link.second(db=0.2e6, copy=3e6)
    assert link.backoff.rows() == ()


def test_watching_links_of_which_none_is_named_is_remarked_on() -> None:
    simulated = '[tuning.host]\nkind = "simulated"\n[contention]\ndevices = "links"\n'
    assert any("has no links to watch" in each for each in remarks(parse(simulated, "test")))
    named = remarks(parse(simulated + '[network]\ndevices = "eth0"\n', "test"))
    assert not any("has no links to watch" in each for each in named)
