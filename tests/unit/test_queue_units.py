"""Jobs as transient units: what is asked of systemd, word for word, over both ways to ask."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from perphd.batch.job import QueuedJob, Started, TransitionRefused, UnitEvidence, after
from perphd.batch.runner import JobRefused, StartFailed
from perphd.domain.errors import KernelError
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.systemd_bus import OBJECT, BusctlBus, NoAnswer, Variant, bus_error, parts_of
from perphd.isolation.job_groups import JobGroups
from perphd.isolation.job_units import SLICE, JobUnits
from perphd.qos.bands import QosBand
from tests.unit.queue_world import spec

ODD = ("$HOME", "`id`", "a b", "", "%n", "ü", "-x", "$$")


@dataclass
class FakeManager:
    """systemd's manager: units that were started, with the properties they were started with."""

    units: dict[str, dict[str, Any]] = field(default_factory=dict)
    shown: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    service: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, list[Any]]] = field(default_factory=list)
    error: KernelError | None = None

    def set_properties(self, unit: str, properties: Sequence[Any]) -> None:
        raise AssertionError("the queue's units are set by the executor alone")

    def freeze(self, unit: str, frozen: bool) -> None:
        raise AssertionError("the queue's units are frozen by the executor alone")

    def close(self) -> None:
        pass

    def call(
        self, member: str, signature: str, body: Sequence[Any], unit: str, path: str = OBJECT
    ) -> list[Any]:
        self.calls.append((member, list(body)))
        assert len(parts_of(signature)) == len(body), (signature, body)
        if self.error is not None and member == "StartTransientUnit" and body[0].endswith(".service"):
            raise self.error
        match member:
            case "StartTransientUnit":
                name, mode, properties, aux = body
                assert (mode, aux) == ("fail", [])
                if name in self.units:
                    raise bus_error(
                        name, member, f"org.freedesktop.systemd1.UnitExists: Unit {name} was already loaded"
                    )
                self.units[name] = {key: value.value for key, value in properties}
                self.shown[name] = ("loaded", "active", "running")
                return ["/job/1"]
            case "ListUnitsByNames":
                return [[self._row(name) for name in body[0]]]
            case "ListUnitsByPatterns":
                return [[self._row(name) for name in self.units]]
            case "GetUnit":
                if body[0] not in self.units:
                    raise bus_error(body[0], member, "org.freedesktop.systemd1.NoSuchUnit: not loaded")
                return ["/unit/1"]
            case "Get":
                return ["running"]
            case "GetAll":
                assert path == "/unit/1"
                return [self.service]
            case "StopUnit" | "ResetFailedUnit":
                if self.units.pop(body[0], None) is None:
                    raise bus_error(body[0], member, "org.freedesktop.systemd1.NoSuchUnit: not loaded")
                return []
        raise AssertionError(member)

    def _row(self, name: str) -> list[Any]:
        load, active, sub = self.shown.get(name, ("not-found", "inactive", "dead")) if name in self.units else (
            "not-found", "inactive", "dead",
        )  # fmt: skip
        return [name, "", load, active, sub, "", "/unit/1", 0, "", "/"]


def job(*command: str, **changes: object) -> QueuedJob:
    started = after(QueuedJob(7, spec(*command, **changes), 0.0), Started(1.0, "", "boot"))
    assert not isinstance(started, TransitionRefused)
    return started


def test_a_copper_job_is_a_transient_unit_of_its_user_with_its_words_as_data() -> None:
    manager = FakeManager()
    environment = (("A", "b c"),)
    submitted = job(
        *ODD, groups=(4, 27), environment=environment, limited=True, output="/tmp/$x", directory="/srv"
    )
    assert JobUnits(manager).start(submitted, "/var/log/7") == f"/{SLICE}/perphd-job-7-1.service"
    assert manager.units[SLICE]["CPUWeight"] == 1
    assert "MemoryHigh" not in manager.units[SLICE], "the host's memory is not known here"
    unit = manager.units["perphd-job-7-1.service"]
    ((path, argv, ignored),) = unit["ExecStart"]
    assert (path, ignored) == ("/bin/sh", False)
    # systemd turns $$ into $; what is left are the job's own words after the script and its name.
    words = [word.replace("$$", "$") for word in argv]
    assert tuple(words[4:]) == ("/tmp/$x", *ODD)
    assert all(word.replace("$$", "").count("$") == 0 for word in argv), "systemd would expand a variable"
    chosen = {
        key: unit[key] for key in ("User", "Group", "SupplementaryGroups", "WorkingDirectory", "Environment")
    }
    assert chosen == {
        "User": "1000",
        "Group": "1000",
        "SupplementaryGroups": ["4", "27"],
        "WorkingDirectory": "/srv",
        "Environment": ["A=b c"],
    }
    assert unit["MemoryMax"] == submitted.spec.memory_bytes
    assert unit["RemainAfterExit"] is True
    assert unit["Before"] == ["perphd.service"], "on shutdown it would be ended while the daemon looks"
    assert unit["StandardOutputFileToAppend"] == "/var/log/7"
    assert unit["OOMScoreAdjust"] == 1000


def test_the_script_passes_words_on_and_opens_the_output_file(tmp_path: Any) -> None:
    """The fixed script, run by a real shell as systemd would run it."""
    manager = FakeManager()
    target = tmp_path / "out put"
    JobUnits(manager).start(job("printf", "<%s>", *ODD, output=str(target)), "/log")
    ((_, argv, _),) = manager.units["perphd-job-7-1.service"]["ExecStart"]
    words = [word.replace("$$", "$") for word in argv]
    subprocess.run(words, check=True)
    subprocess.run(words, check=True)
    assert target.read_text() == 2 * "".join(f"<{word}>" for word in ODD)


def test_copper_jobs_together_have_at_most_four_fifths_of_the_host() -> None:
    manager = FakeManager()
    JobUnits(manager, 10 << 30).start(job(), "/log")
    assert manager.units[SLICE]["MemoryHigh"] == 8 << 30


@pytest.mark.parametrize("version", [1, 2])
def test_without_systemd_coppers_group_has_the_least_weights_and_a_bound(
    version: int, tmp_path: Path
) -> None:
    """Folders stand in for control groups: what is written there is what the kernel would be asked for."""
    names = frozenset({"cpu", "io", "memory"})
    one = Hierarchy(version, str(tmp_path / "cgroup"), names)
    layout, unified = (Layout.V2, one) if version == 2 else (Layout.V1, None)
    mounted = Hierarchies(layout, unified, dict.fromkeys(names, one))
    (tmp_path / "cgroup").mkdir()
    groups = JobGroups(mounted, tmp_path / "units", "boot", 10 << 30)
    groups.make_group(job())
    parent = tmp_path / "cgroup" / "perphd-jobs"
    found = {path.name: path.read_text() for path in parent.iterdir() if path.is_file()}
    found.pop("cgroup.subtree_control", None)
    if version == 1:
        assert found == {"cpu.shares": "2", "blkio.bfq.weight": "1"}
        return
    assert found == {
        "cpu.weight": "1",
        "cpu.idle": "1",
        "io.weight": "default 1",
        "io.bfq.weight": "default 1",
        "memory.high": str(8 << 30),
    }
    assert (parent / "perphd-job-7-1.service" / "memory.oom.group").read_text() == "1"
    groups.make_group(job(band=QosBand.SILVER))
    assert not list((tmp_path / "cgroup" / "perphd-jobs-silver").glob("[!c]*weight"))


def test_a_job_whose_output_blocks_holds_no_other_job_up(tmp_path: Path) -> None:
    names = frozenset({"cpu", "memory"})
    one = Hierarchy(2, str(tmp_path / "cgroup"), names)
    (tmp_path / "cgroup").mkdir()
    groups = JobGroups(Hierarchies(Layout.V2, one, dict.fromkeys(names, one)), tmp_path / "units", "boot")
    os.mkfifo(tmp_path / "nobody-reads")
    mine = {"uid": os.getuid(), "gid": os.getgid(), "directory": "/"}
    stuck = job("/bin/true", output=str(tmp_path / "nobody-reads"), **mine)
    starting = threading.Thread(target=groups.start, args=(stuck, str(tmp_path / "log")), daemon=True)
    starting.start()
    starting.join(60.0)
    hangs = starting.is_alive()
    before = groups.look([stuck])[stuck.id].evidence
    reader = os.open(tmp_path / "nobody-reads", os.O_RDONLY | os.O_NONBLOCK)
    starting.join()
    assert not hangs
    assert before is UnitEvidence.RUNS
    until_s = time.monotonic() + 60.0
    while (
        state := groups.look([stuck])[stuck.id]
    ).evidence is UnitEvidence.RUNS and time.monotonic() < until_s:
        time.sleep(0.05)
    os.close(reader)
    assert (state.evidence, state.status) == (UnitEvidence.ENDED, 0)


def test_a_silver_job_is_an_ordinary_service() -> None:
    manager = FakeManager()
    JobUnits(manager).start(job(band=QosBand.SILVER), "/log")
    unit = manager.units["perphd-job-7-1.service"]
    assert SLICE not in manager.units
    assert (unit["Slice"], unit["OOMScoreAdjust"], "MemoryMax" in unit) == ("system.slice", 0, False)


def test_a_unit_that_exists_is_not_started_again() -> None:
    manager = FakeManager()
    units = JobUnits(manager)
    units.start(job(), "/log")
    before = dict(manager.units)
    assert units.start(job(), "/log")
    assert manager.units == before


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("org.freedesktop.DBus.Error.InvalidArgs: Invalid environment", JobRefused),
        ("org.freedesktop.DBus.Error.AccessDenied: no", StartFailed),
        ("org.freedesktop.DBus.Error.NoReply: timed out", NoAnswer),
    ],
)
def test_what_systemd_refuses_is_told_apart(text: str, raised: type[Exception]) -> None:
    manager = FakeManager(error=bus_error("x", "StartTransientUnit", text))
    with pytest.raises(raised):
        JobUnits(manager).start(job(), "/log")


@pytest.mark.parametrize(
    ("shown", "service", "evidence", "status"),
    [
        ("active running", None, UnitEvidence.RUNS, 0),
        ("activating start", None, UnitEvidence.RUNS, 0),
        ("active exited", (1, 0, "success"), UnitEvidence.ENDED, 0),
        ("failed failed", (1, 3, "exit-code"), UnitEvidence.ENDED, 3),
        ("failed failed", (2, 9, "oom-kill"), UnitEvidence.ENDED, 137),
        ("failed failed", (0, 0, "resources"), UnitEvidence.ENDED, 127),
        ("inactive dead", None, UnitEvidence.UNKNOWN, 0),
    ],
)
def test_states_of_units_are_evidence(
    shown: str, service: tuple[int, int, str] | None, evidence: UnitEvidence, status: int
) -> None:
    manager = FakeManager()
    units = JobUnits(manager)
    units.start(job(), "/log")
    active, sub = shown.split()
    manager.shown["perphd-job-7-1.service"] = ("loaded", active, sub)
    if service is not None:
        manager.service = dict(zip(("ExecMainCode", "ExecMainStatus", "Result"), service, strict=True))
    found = units.look([job()])[7]
    assert (found.evidence, found.status) == (evidence, status)


def test_a_unit_that_is_not_there_was_never_started() -> None:
    assert JobUnits(FakeManager()).look([job()])[7].evidence is UnitEvidence.NEVER_STARTED


def test_stopping_removes_the_unit_and_stopping_again_is_fine() -> None:
    manager = FakeManager()
    units = JobUnits(manager)
    units.start(job(), "/log")
    assert units.units() == ("perphd-job-7-1.service",)
    assert units.stop("perphd-job-7-1.service")
    assert units.stop("perphd-job-7-1.service")
    assert units.units() == ()


@pytest.mark.parametrize(
    ("signature", "parts"),
    [
        ("", []),
        ("ssa(sv)a(sa(sv))", ["s", "s", "a(sv)", "a(sa(sv))"]),
        ("asas", ["as", "as"]),
        ("a(sasb)", ["a(sasb)"]),
    ],
)
def test_signatures_are_taken_apart(signature: str, parts: list[str]) -> None:
    assert parts_of(signature) == parts


def test_busctl_gets_every_value_as_a_word_of_its_own() -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0, json.dumps({"type": "o", "data": ["/job/1"]}), "")

    properties = [
        ("ExecStart", Variant("a(sasb)", [("/bin/sh", ["sh", "-c", "$ x"], False)])),
        ("RemainAfterExit", Variant("b", True)),
    ]
    bus = BusctlBus(run)
    assert bus.call("StartTransientUnit", "ssa(sv)a(sa(sv))", ["u.service", "fail", properties, []], "u") == [
        "/job/1"
    ]
    (words,) = asked
    assert words[words.index("StartTransientUnit") + 1 :] == [
        "ssa(sv)a(sa(sv))", "u.service", "fail", "2", "ExecStart", "a(sasb)", "1", "/bin/sh", "3", "sh", "-c", "$ x",
        "false", "RemainAfterExit", "b", "true", "0",
    ]  # fmt: skip


def test_variants_in_busctls_answer_are_unwrapped() -> None:
    said = {
        "type": "a{sv}",
        "data": [{"Result": {"type": "s", "data": "success"}, "N": {"type": "i", "data": 3}}],
    }
    bus = BusctlBus(lambda words, **_: subprocess.CompletedProcess(words, 0, json.dumps(said), ""))
    assert bus.call("GetAll", "s", ["x"], "u", "/unit/1") == [{"Result": "success", "N": 3}]


def test_dbus_fast_gets_its_own_variants() -> None:
    from dbus_fast import Variant as Real

    from perphd.host.systemd_dbus import _received, _sent

    sent = _sent("a(sv)", [("ExecStart", Variant("a(sasb)", [("/bin/sh", ["sh"], False)]))])
    assert sent == [["ExecStart", Real("a(sasb)", [["/bin/sh", ["sh"], False]])]]
    assert _received({"a": Real("s", "b"), "c": [Real("i", 1)]}) == {"a": "b", "c": [1]}


def test_every_property_has_a_value_of_its_type() -> None:
    """dbus-fast marshals the whole call, so a value that is not of its type fails here."""
    from dbus_fast import Message

    from perphd.host.systemd_dbus import _sent
    from perphd.isolation.job_units import _properties

    submitted = replace(job("a", groups=(1,), limited=True), id=1)
    body = [_sent("a(sv)", _properties(submitted, "/log"))]
    message = Message(
        path="/a", interface="a.b", member="C", signature="a(sv)", body=body, serial=1, destination="a.b"
    )
    assert message._marshall(False)
