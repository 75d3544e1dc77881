"""The life of models on disk: kept, loaded, refused, replaced, never a reason to stop."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.agent import models as models_module
from perphd.agent.models import Models
from perphd.agent.records import Records
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.errors import KernelError
from perphd.domain.policy import ModelContext
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.predictor import Observation, Registry
from perphd.predictor.files import ModelFiles
from perphd.predictor.persist import VERSION, ModelFileError, from_text
from tests.unit.inline import HeldCall, inline

DB = WorkloadSpec("db", Kind.LRA, "/app/db", sli=SliSpec("push"))
PI = WorkloadSpec("pi", Kind.BATCH, "/batch/pi")
NO_LOAD = Unavailable("no load signal")


class Daemon:
    """One life of a daemon: its models, its records, and the clocks that it sees."""

    def __init__(
        self,
        directory: Path,
        now_s: float = 0.0,
        wall_s: float = 1e9,
        host: str = "here",
        in_thread: bool = False,
    ) -> None:
        self.now_s, self.wall_s = now_s, wall_s
        self.records = Records(None, lambda: self.wall_s)
        self.files = ModelFiles(directory)
        self.models = Models(
            Registry(), self.files, self.records, lambda: self.wall_s, host, 4, in_thread=in_thread
        )

    def start(self, spec: WorkloadSpec = DB) -> Daemon:
        inline(self.models.follow((spec, PI), self.now_s))
        return self

    def live(self, seconds: int, work: float = 1000.0) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.wall_s += 1.0
            sample = Sample(
                "db", self.now_s, 1.0, cpu_usage_cores=1.0, run_delay_cores=0.1, work_rate_per_s=work
            )
            context = ModelContext(1.0, 0.0, 4.0)
            seen = Observation(sample, Allocation(CpuGrant(4, 4)), context, undisturbed=True)
            self.models.model("db").observe(seen)

    def stop(self) -> None:
        self.models.close((DB, PI), self.now_s, save=True)

    @property
    def work(self) -> float | None:
        band = self.models.model("db").reference("work:sli", NO_LOAD)
        return band.value if band is not None else None

    @property
    def problem(self) -> str:
        return "; ".join(self.records.problems)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models"


def lived(path: Path, seconds: int = 20, work: float = 1000.0) -> None:
    daemon = Daemon(path).start()
    daemon.live(seconds, work)
    daemon.stop()


def test_what_was_learned_is_known_after_a_restart_under_another_clock(path: Path) -> None:
    lived(path)
    daemon = Daemon(path, now_s=7.0, wall_s=1e9 + 30).start()
    assert daemon.work == pytest.approx(1000.0)
    assert daemon.problem == ""
    summary = daemon.models.summary(DB)
    assert (summary.samples, summary.origin) == (20, "loaded, learned on here")
    assert summary.saved_ago_s == pytest.approx(10.0)
    daemon.live(5)
    assert daemon.models.summary(DB).samples == 25


def test_a_question_before_the_first_tick_does_not_hide_the_saved_model(path: Path) -> None:
    lived(path)
    daemon = Daemon(path)
    assert daemon.models.summary(DB).samples == 0
    assert daemon.start().models.summary(DB).samples == 20


def test_batch_has_no_model(path: Path) -> None:
    lived(path)
    assert [file.name for file in path.iterdir()] == ["db.json"]


def test_nothing_learned_is_not_written(path: Path) -> None:
    Daemon(path).start().stop()
    assert not path.exists()


def test_models_are_saved_when_they_are_due_and_only_if_they_learned(path: Path) -> None:
    daemon = Daemon(path).start()

    def saved_s() -> float | None:
        daemon.models._wait(daemon.now_s)
        found = daemon.models.summary(DB).saved_ago_s
        return found if available(found) else None

    daemon.models.save_when_due((DB,), daemon.now_s, 10.0)
    daemon.live(9)
    daemon.models.save_when_due((DB,), daemon.now_s, 10.0)
    assert saved_s() is None
    daemon.live(1)
    daemon.models.save_when_due((DB,), daemon.now_s, 10.0)
    assert saved_s() == 0.0
    daemon.now_s += 10.0
    daemon.wall_s += 10.0
    daemon.models.save_when_due((DB,), daemon.now_s, 10.0)
    assert saved_s() == 10.0  # it learned nothing since
    daemon.live(10)
    daemon.models.save_when_due((DB,), daemon.now_s, 0.0)
    assert saved_s() == 20.0  # 0: never
    daemon.models.save_when_due((DB,), daemon.now_s, 10.0)
    assert saved_s() == 0.0
    assert (path / "db.json.last").exists()
    assert not (path / "db.json.new").exists()
    daemon.stop()


def resealed(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    data = json.loads(text)
    change(data)
    canonical = json.dumps(data["body"], sort_keys=True, separators=(",", ":"))
    data["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps(data)


DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "cut off": (lambda text: text[:300], "not JSON"),
    "emptied": (lambda _: "", "not JSON"),
    "a bit turned": (lambda text: text.replace('"samples":', '"samples":1', 1), "checksum is wrong"),
    "of a later version": (
        lambda text: resealed(text, lambda d: d.update(version=VERSION + 1)),
        f"version is {VERSION + 1}; this perphd reads versions 1 to {VERSION}",
    ),
    "not a number": (lambda text: text.replace('"samples":', '"samples":NaN,"x":', 1), "NaN"),
    "absurd": (
        lambda text: resealed(text, lambda d: d["body"]["state"]["reference"][0].update(mean=1e9)),
        "mean is 1000000000.0",
    ),
    "of another LRA": (
        lambda text: resealed(text, lambda d: d["body"]["provenance"].update(lra="web")),
        "it belongs to the LRA 'web'",
    ),
    "of another application": (
        lambda text: resealed(text, lambda d: d["body"]["provenance"].update(cgroup="/app/old")),
        "in /app/old, not to the one in /app/db",
    ),
    "counted otherwise": (
        lambda text: resealed(text, lambda d: d["body"]["provenance"].update(sli_source="mysql")),
        "counted by mysql, but that of 'db' is counted by push",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_file_is_named_and_the_last_good_one_used(path: Path, damage: str) -> None:
    spoil, says = DAMAGES[damage]
    lived(path, work=500.0)
    daemon = Daemon(path).start()
    daemon.live(20, 2000.0)
    daemon.stop()
    assert (path / "db.json.last").exists()
    (path / "db.json").write_text(spoil((path / "db.json").read_text()))
    daemon = Daemon(path).start()
    assert daemon.work == pytest.approx(500.0)
    assert says in daemon.problem
    assert str(path / "db.json") in daemon.problem
    assert "the last good model is used" in daemon.problem
    assert (path / "db.json.aside").exists()
    daemon.live(20, 2000.0)
    daemon.stop()
    again = Daemon(path).start()
    assert again.problem == ""
    assert again.models.summary(DB).samples == 40


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_last_good_one_it_is_learned_anew(path: Path, damage: str) -> None:
    spoil, says = DAMAGES[damage]
    lived(path)
    (path / "db.json").write_text(spoil((path / "db.json").read_text()))
    daemon = Daemon(path).start()
    assert daemon.work is None
    assert says in daemon.problem
    assert "learning starts over" in daemon.problem
    daemon.live(20)
    daemon.stop()
    assert daemon.problem == ""  # a good one was written
    assert Daemon(path).start().work == pytest.approx(1000.0)


def test_a_bad_file_never_becomes_the_last_good_one(path: Path) -> None:
    lived(path, work=500.0)
    lived_again = Daemon(path).start()
    lived_again.live(1)
    lived_again.stop()
    good = (path / "db.json.last").read_text()
    (path / "db.json").write_text("rubbish")
    daemon = Daemon(path).start()
    daemon.live(3)
    daemon.stop()
    assert (path / "db.json.last").read_text() == good


def test_bytes_that_are_no_text(path: Path) -> None:
    path.mkdir()
    (path / "db.json").write_bytes(b"\xff\xfe\x00" * 100)
    assert "not JSON" in Daemon(path).start().problem


def test_a_clock_that_went_back_is_said_and_counts_as_no_time(path: Path) -> None:
    lived(path)
    daemon = Daemon(path, wall_s=5e8).start()
    assert "the clock went back" in daemon.problem
    assert daemon.work == pytest.approx(1000.0)


def test_a_directory_that_cannot_be_written_is_a_problem_and_no_exception(path: Path) -> None:
    path.write_text("in the way")
    daemon = Daemon(path).start()
    assert "cannot be read" in daemon.problem
    daemon.live(20)
    daemon.models.save_when_due((DB,), daemon.now_s, 1.0)
    daemon.live(2)
    daemon.models.save_when_due((DB,), daemon.now_s, 1.0)
    daemon.stop()
    assert "model of db could not be saved" in daemon.problem
    assert str(path) in daemon.problem


def test_a_mistake_of_ours_while_saving_is_a_problem_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(path).start()
    daemon.live(20)

    def broken(lra: str, text: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(daemon.files, "save", broken)
    daemon.stop()
    assert "RuntimeError('a bug')" in daemon.problem


def test_a_crash_between_the_two_renames_loses_nothing(path: Path) -> None:
    lived(path)
    (path / "db.json").rename(path / "db.json.last")
    (path / "db.json.new").write_text("half a fi")
    daemon = Daemon(path).start()
    assert daemon.work == pytest.approx(1000.0)
    assert daemon.problem == ""


def test_reset_begins_anew_and_stays_so_after_a_restart(path: Path) -> None:
    lived(path)
    daemon = Daemon(path).start()
    daemon.live(1)
    daemon.stop()
    daemon = Daemon(path).start()
    daemon.models.reset(DB, 0.0)
    assert daemon.work is None
    daemon.stop()
    assert Daemon(path).start().work is None
    assert (path / "db.json.aside").exists()


def test_reset_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(path)
    daemon = Daemon(path).start()

    def refused(*_: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr("perphd.predictor.files.os.replace", refused)
    with pytest.raises(KernelError, match=r"db\.json"):
        daemon.models.reset(DB, 0.0)
    assert daemon.work == pytest.approx(1000.0)


def test_a_removed_workload_takes_its_model_along(path: Path) -> None:
    lived(path)
    daemon = Daemon(path).start()
    daemon.models.forget("db", 0.0)
    daemon.models.forget("pi", 0.0)
    daemon.start()
    assert daemon.work is None
    assert Daemon(path).start().work is None


# --- from host to host -----------------------------------------------------------------------------------------


def exported(path: Path, spec: WorkloadSpec = DB) -> bytes:
    daemon = Daemon(path, host="there").start()
    daemon.live(20, 700.0)
    return daemon.models.export(spec, daemon.now_s).encode()


def test_a_model_of_another_host_is_taken_with_a_warning_and_kept(path: Path, tmp_path: Path) -> None:
    text = exported(tmp_path / "there")
    daemon = Daemon(path, wall_s=1e9 + 20).start()
    warnings = inline(daemon.models.take(DB, text, 0.0, rename=False))
    assert daemon.work == pytest.approx(700.0)
    assert "learned on there" in " ".join(warnings)
    assert daemon.models.summary(DB).origin == "imported, learned on there"
    daemon.models.save_when_due((DB,), 0.0, 300.0)  # at once, not in five minutes
    daemon.models._wait(0.0)
    assert from_text((path / "db.json").read_bytes()).provenance.host == "here"


def test_the_same_model_comes_back_without_a_warning(path: Path) -> None:
    daemon = Daemon(path).start()
    daemon.live(20)
    text = daemon.models.export(DB, daemon.now_s).encode()
    daemon.models.reset(DB, daemon.now_s)
    assert inline(daemon.models.take(DB, text, daemon.now_s, rename=False)) == ()
    assert daemon.work == pytest.approx(1000.0)


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d != "of another application"])
def test_a_bad_import_is_refused_and_changes_nothing(path: Path, tmp_path: Path, damage: str) -> None:
    spoil, says = DAMAGES[damage]
    text = spoil(exported(tmp_path / "there").decode()).encode()
    daemon = Daemon(path).start()
    daemon.live(20)
    before = daemon.models.model("db")
    with pytest.raises(ModelFileError) as refused:
        inline(daemon.models.take(DB, text, daemon.now_s, rename=False))
    assert says in str(refused.value) or "of the LRA 'web', not of 'db'" in str(refused.value)
    assert daemon.models.model("db") is before


def test_another_name_is_taken_on_demand(path: Path, tmp_path: Path) -> None:
    text = exported(tmp_path / "there", replace(DB, name="db"))
    web = replace(DB, name="web", cgroup="/app/web")
    daemon = Daemon(path).start(web)
    with pytest.raises(ModelFileError, match="--rename"):
        inline(daemon.models.take(web, text, 0.0, rename=False))
    inline(daemon.models.take(web, text, 0.0, rename=True))
    assert daemon.models.summary(web).samples == 20


# -- threads --------------------------------------------------------------------------------------------------------


async def test_the_loop_goes_on_while_a_model_is_read(path: Path) -> None:
    lived(path)
    daemon = Daemon(path, in_thread=True)
    reader = HeldCall(daemon.files.load)
    daemon.files.load = reader  # type: ignore[method-assign, assignment]
    following = asyncio.create_task(daemon.models.follow((DB, PI), 0.0))
    await reader.let_go()
    assert daemon.models.summary(DB).samples == 0, "a question meanwhile hides nothing"
    await following
    assert daemon.models.summary(DB).samples == 20


async def test_the_loop_goes_on_while_an_imported_model_is_decoded(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(path)
    daemon = Daemon(tmp_path / "other", in_thread=True)
    await daemon.models.follow((DB, PI), 0.0)
    reader = HeldCall(from_text)
    monkeypatch.setattr(models_module, "from_text", reader)
    taking = asyncio.create_task(daemon.models.take(DB, (path / "db.json").read_bytes(), 0.0, rename=False))
    await reader.let_go()
    await taking
    assert daemon.models.summary(DB).samples == 20
