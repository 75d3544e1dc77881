"""Contributions in a folder: written by one host's daemon, read by another's when an application is new to it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread
from time import sleep
from typing import Any

import msgspec
import numpy as np
import pytest

from perphd.agent import federated as agent_federated
from perphd.agent.contribution_folder import ContributionFolder, contributor_name
from perphd.agent.federated import (
    AGAIN_S,
    BEHIND,
    KEPT,
    LEFT,
    ON_TRIAL,
    TOO_LITTLE,
    Federated,
    Membership,
)
from perphd.agent.forecast_scores import write_scores
from perphd.agent.models import Models
from perphd.agent.records import Records
from perphd.domain.errors import PerphError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.federated.contribution import Contribution, Statistic, Topic, to_text
from perphd.federated.hardware import Hardware
from perphd.federated.ledger import EVERY_GENERATION
from perphd.federated.pooling import BEHIND_OTHERS, EXPIRED_OTHERS, CountedHost, Pooled
from perphd.federated.replicas import ABSENT_S
from perphd.predictor import Registry
from perphd.predictor import federated as predictor_federated
from perphd.predictor.files import ModelFiles
from perphd.predictor.trial import LENGTH
from tests.unit.inline import inline
from tools.bench.federated.hosts import days, fleet

APP = WorkloadSpec("app", Kind.LRA, "/app")
HOSTS = fleet(3, applications=1)[:5]
SAMPLES = 120
NOW = 1.8e9


class Daemon:
    """One daemon's models on one simulated host."""

    def __init__(
        self, base: Path, number: int, folder: Path, wall_s: float = NOW, contribute: bool = True,
        forecasts: Path | None = None,
    ) -> None:  # fmt: skip
        self.host, self.wall_s, self.now_s = HOSTS[number], wall_s, 0.0
        self.records = Records(None, lambda: self.wall_s)
        here = Membership(self.host.name, self.host.hardware, 30 * 86400.0, contribute, forecasts)
        state = base / self.host.name
        self.federated = Federated(
            ContributionFolder(folder),
            state / "origins",
            here,
            self.records,
            lambda: self.wall_s,
            inline=True,
        )
        self.known_as = APP.name
        self.registry = Registry("ogbrt")
        self.models = Models(
            self.registry, ModelFiles(state), self.records, lambda: self.wall_s, self.host.name,
            self.host.hardware.cores, federated=self.federated, in_thread=False,
        )  # fmt: skip

    def live(self, samples: int) -> Daemon:
        self.tick()
        for seen in days(self.host, 0, 3, SAMPLES).observations[: 30 + samples]:
            self.models.model("app").observe(seen)
            self.now_s = seen.sample.at_s
        return self

    def tick(self) -> Daemon:
        inline(self.models.follow((APP,), self.now_s, lambda _: self.known_as))
        return self

    def stop(self) -> None:
        self.models.close((APP,), self.now_s, save=True)

    @property
    def origin(self):
        return self.models.origin(APP, APP.name)

    @property
    def problem(self) -> str:
        return "; ".join(self.records.problems)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contributions of four hosts."""
    folder = tmp_path_factory.mktemp("fleet")
    for number in range(1, 5):
        Daemon(tmp_path_factory.mktemp("state"), number, folder).live(SAMPLES).stop()
    return folder


@pytest.fixture
def folder(told: Path, tmp_path: Path) -> Path:
    return shutil.copytree(told, tmp_path / "copied")


def test_every_host_writes_one_file(told: Path) -> None:
    assert sorted(file.name for file in told.iterdir()) == [f"host-0{n}.json" for n in range(1, 5)]
    ledger, problems = ContributionFolder(told).read()
    assert problems == ()
    assert [c.contributor for c in ledger.counting()] == [f"host-0{n}" for n in range(1, 5)]


def test_a_new_application_starts_from_the_others(folder: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert daemon.models.summary(APP).origin == "began from 4 other hosts"
    assert daemon.problem == ""
    origin = daemon.origin
    assert origin.outcome == ON_TRIAL
    assert sorted(h.contributor for h in origin.hosts) == [f"host-0{n}" for n in range(1, 5)]
    assert sum(h.share_ratio for h in origin.hosts) == pytest.approx(1.0)
    assert origin.points > 24


@pytest.mark.parametrize(
    ("others", "words"), [(1, "began from 1 other host"), (2, "began from 2 other hosts")]
)
def test_the_origin_counts_in_good_grammar(folder: Path, tmp_path: Path, others: int, words: str) -> None:
    none = np.zeros(0)
    hosts = tuple(CountedHost(f"other-{n}", 1, 0.0, 0.0, "", 0.5) for n in range(others))
    pooled = Pooled(none, none, none, none.astype(np.int64), hosts)
    assert Daemon(tmp_path, 0, folder).federated._words(pooled) == words


def test_where_a_model_came_from_is_known_after_a_restart(folder: Path, tmp_path: Path) -> None:
    Daemon(tmp_path, 0, folder).live(LENGTH + 10).stop()
    again = Daemon(tmp_path, 0, folder).tick()
    assert again.origin.outcome == KEPT
    assert len(again.origin.hosts) == 4
    again.models.reset(APP, 0.0)
    assert again.origin.hosts == ()


def make_wrong(folder: Path) -> None:
    """Let all hosts say the same wrong value."""
    for file in folder.iterdir():
        said = ContributionFolder(folder).own(file.stem)
        assert said is not None
        wrong = tuple(
            msgspec.structs.replace(each, values=tuple(-1.4 for _ in each.values)) for each in said.statistics
        )
        file.write_bytes(to_text(msgspec.structs.replace(said, statistics=wrong)))


def test_a_restart_does_not_end_a_trial(folder: Path, tmp_path: Path) -> None:
    Daemon(tmp_path, 0, folder).live(10).stop()
    again = Daemon(tmp_path, 0, folder).tick()
    assert again.origin.outcome == ON_TRIAL
    for seen in days(again.host, 0, 3, SAMPLES).observations[40 : 40 + LENGTH - 10]:
        assert again.origin.outcome == ON_TRIAL
        again.models.model("app").observe(seen)
    assert again.origin.outcome == KEPT


def test_a_wrong_start_is_left_although_perphd_was_restarted(folder: Path, tmp_path: Path) -> None:
    make_wrong(folder)
    Daemon(tmp_path, 0, folder).live(0).stop()  # before it has been compared
    outcomes = []
    for samples in (2, LENGTH + 5):
        again = Daemon(tmp_path, 0, folder).tick()
        heard = days(again.host, 0, 3, SAMPLES).observations[30 : 30 + samples]
        for seen in heard:
            again.models.model("app").observe(seen)
        again.now_s = heard[-1].sample.at_s
        again.stop()
        outcomes.append(again.origin.outcome)
    assert outcomes[-1] == LEFT


def test_a_start_that_is_worse_is_said_to_be_left(folder: Path, tmp_path: Path) -> None:
    make_wrong(folder)
    daemon = Daemon(tmp_path, 0, folder).live(30)
    assert daemon.origin.outcome == BEHIND
    daemon = Daemon(tmp_path / "b", 0, folder).live(LENGTH + 5)
    assert daemon.origin.outcome == LEFT


def test_a_withdrawn_host_does_not_count_until_it_is_reinstated(folder: Path, tmp_path: Path) -> None:
    place = ContributionFolder(folder)
    place.withdraw("host-01")
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert [(left.contributor, left.reason) for left in daemon.origin.left_out] == [("host-01", "withdrawn")]
    assert len(daemon.origin.hosts) == 3
    assert place.read()[0].withdrawn == {"host-01": EVERY_GENERATION}
    assert place.reinstate("host-01")
    assert not place.reinstate("host-01")
    assert len(Daemon(tmp_path / "b", 0, folder).tick().origin.hosts) == 4


def test_too_few_hosts_are_no_start(folder: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        (folder / f"host-0{number}.json").unlink()
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert daemon.origin.outcome == TOO_LITTLE
    assert daemon.models.summary(APP).origin == "learned here"


def redated(folder: Path, host: str, made_unix_s: float) -> None:
    """Let the document of a host be made at another time."""
    said = ContributionFolder(folder).own(host)
    assert said is not None
    (folder / f"{host}.json").write_bytes(to_text(msgspec.structs.replace(said, made_unix_s=made_unix_s)))


def test_a_contribution_expires(folder: Path, tmp_path: Path) -> None:
    redated(folder, "host-04", NOW - 31 * 86400.0)
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert [(left.contributor, left.reason) for left in daemon.origin.left_out] == [("host-04", "expired")]
    assert len(daemon.origin.hosts) == 3


def test_what_cannot_be_read_is_named_and_the_rest_counts(folder: Path, tmp_path: Path) -> None:
    (folder / "host-04.json").write_bytes(b"nonsense")
    (folder / "host-09.json").write_bytes((folder / "host-01.json").read_bytes())
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to("/etc/passwd")
    (folder / "bad.withdrawn").write_text("{}")
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert len(daemon.origin.hosts) == 3
    for name, why in (
        ("host-04", "not a contribution"), ("host-09", "named after another host"), ("pipe", "regular file"),
        ("link", "not used"), ("bad", "not a withdrawal"),
    ):  # fmt: skip
        assert name in daemon.problem
        assert why in daemon.problem


def test_a_missing_folder_is_no_problem_for_a_reader(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 0, tmp_path / "none", contribute=False).live(SAMPLES)
    daemon.stop()
    assert daemon.problem == ""
    assert not (tmp_path / "none").exists()


def test_a_contribution_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    daemon = Daemon(tmp_path, 0, tmp_path / "file" / "folder").live(SAMPLES)
    daemon.stop()
    daemon.tick()
    assert "contribution to other hosts' models is not written" in daemon.problem
    assert "ReadWritePaths" in daemon.problem


def test_a_folder_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path, 0, tmp_path / "f").live(SAMPLES)
    federated = daemon.models._federated
    assert federated is not None
    goes_on, began, written = Event(), Event(), list[Contribution]()

    def slow(document: Contribution) -> Path:
        began.set()
        assert goes_on.wait(60.0)
        written.append(document)
        return tmp_path

    monkeypatch.setattr(federated, "_inline", False)
    monkeypatch.setattr(federated._folder, "write", slow)
    for _ in range(3):
        federated.contribute((), {"app": "app"})  # returns, whatever the folder does
    assert began.wait(60.0)
    assert written == []
    goes_on.set()
    for _ in range(6000):
        if not federated._is_contributing:
            break
        sleep(0.01)
    assert 1 <= len(written) <= 3
    assert not federated._is_contributing


def test_only_statistics_about_those_that_wait_are_kept(folder: Path) -> None:
    everything, _ = ContributionFolder(folder).read()
    nothing, _ = ContributionFolder(folder).read([])
    assert any(each.statistics for each in everything.counting())
    assert [each.contributor for each in nothing.counting()] == [
        each.contributor for each in everything.counting()
    ]
    assert not any(each.statistics for each in nothing.counting())


def test_statistics_about_other_topics_are_not_kept_in_memory(folder: Path) -> None:
    said = ContributionFolder(folder).own("host-01")
    assert said is not None
    more = tuple(
        Statistic(Topic("correction", "app", f"aspect {n}", "anything"), (0.0,) * 256, (0.0,) * 256)
        for n in range(200)
    )
    document = msgspec.structs.replace(said, statistics=(*said.statistics, *more))
    (folder / "host-01.json").write_bytes(to_text(document))
    ledger, problems = ContributionFolder(folder).read({each.topic for each in said.statistics})
    assert problems == ()
    assert ledger.contributions["host-01"].statistics == said.statistics


def test_a_hostile_host_does_not_keep_others_from_telling(folder: Path, tmp_path: Path) -> None:
    said = ContributionFolder(folder).own("host-01")
    assert said is not None
    blank = msgspec.structs.replace(said.hardware, cpu=" ")
    document = msgspec.structs.replace(said, contributor="evil", hardware=blank)
    (folder / "evil.json").write_bytes(to_text(document))
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert daemon.problem == ""
    assert daemon.models.summary(APP).origin == "began from 5 other hosts"


def test_an_application_that_cannot_be_pooled_does_not_stop_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, 0, folder)

    def pooled(ledger: Any, lra: str, *asked: Any) -> Any:
        if lra == "odd":
            raise ValueError("a bug")
        return predictor_federated.pooled(ledger, lra, *asked)

    monkeypatch.setattr(agent_federated, "pooled", pooled)
    odd = replace(APP, name="odd", cgroup="/odd")
    for daemon.now_s in (0.0, AGAIN_S * 2):
        inline(daemon.models.follow((odd, APP), daemon.now_s))
        assert "odd: contributions of other hosts cannot be used: ValueError('a bug')" in daemon.problem
    assert daemon.models.summary(APP).origin == "began from 4 other hosts"


def test_names_of_files_cannot_control_a_terminal(folder: Path, tmp_path: Path) -> None:
    for name in (b"\x1b[31m.json", b"\xff.json", b"a\n.withdrawn"):
        (folder / os.fsdecode(name)).write_bytes(b"x")
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert daemon.problem.isprintable()
    daemon.problem.encode()
    for shown in (r"\x1b[31m.json", r"\udcff.json", r"a\n.withdrawn"):
        assert shown in daemon.problem


def test_texts_of_documents_cannot_control_a_terminal(folder: Path, tmp_path: Path) -> None:
    said = ContributionFolder(folder).own("host-01")
    assert said is not None
    topic = Topic("\x1b[2J", "a\nb", "work", "p")
    twice = (Statistic(topic, (0.0,), (0.0,)), Statistic(topic, (0.0,), (0.0,)))
    (folder / "host-01.json").write_bytes(to_text(msgspec.structs.replace(said, statistics=twice)))
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert "nb is given twice" in daemon.problem
    assert daemon.problem.isprintable()


def test_own_document_is_no_sign_that_the_folder_is_mounted(folder: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    Daemon(tmp_path, 0, mounted).live(SAMPLES).stop()
    assert [file.name for file in mounted.iterdir()] == ["host-00.json"]
    daemon = Daemon(
        tmp_path / "again", 0, mounted
    ).tick()  # its state was lost, or another application is new
    for file in folder.iterdir():
        (mounted / file.name).write_bytes(file.read_bytes())
    daemon.now_s = AGAIN_S
    assert daemon.tick().models.summary(APP).origin == "began from 4 other hosts"


def test_a_reset_model_is_no_longer_spoken_of(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    daemon = Daemon(tmp_path, 0, folder).live(SAMPLES)
    daemon.models.save_when_due((APP,), 0.0, 1.0)
    daemon.models.save_when_due((APP,), 10.0, 1.0)
    daemon.models._wait(11.0)
    before = ContributionFolder(folder).own("host-00")
    assert before is not None
    assert before.statistics != ()
    daemon.models.reset(APP, 11.0)
    daemon.models.model("app").samples += 1  # it has begun again, with too little to contribute
    daemon.models.close((APP,), 12.0, save=True)
    after = ContributionFolder(folder).own("host-00")
    assert after is not None
    assert after.statistics == ()


def test_a_reset_model_starts_from_the_hosts_that_still_count(folder: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 0, folder).live(LENGTH + 10)
    ContributionFolder(folder).withdraw("host-01")
    daemon.models.reset(APP, daemon.now_s)
    daemon.tick()
    assert daemon.origin.outcome == ON_TRIAL
    assert sorted(h.contributor for h in daemon.origin.hosts) == [f"host-0{n}" for n in range(2, 5)]


def test_the_loop_does_not_wait_for_the_disk_when_a_model_starts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(descriptor: int) -> None:
        raise AssertionError("synced on the loop")

    daemon = Daemon(tmp_path, 0, folder)
    monkeypatch.setattr(os, "fsync", hangs)
    daemon.tick()
    assert len(daemon.origin.hosts) == 4


def test_the_greatest_generation_of_an_edited_document_does_not_end_contributing(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    Daemon(tmp_path, 0, folder).live(SAMPLES).stop()
    place = ContributionFolder(folder)
    said = place.own("host-00")
    assert said is not None
    place.write(msgspec.structs.replace(said, generation=EVERY_GENERATION))
    later = Daemon(tmp_path, 0, folder, wall_s=NOW + 100.0).tick()
    later.models.model("app").samples += 1
    later.stop()
    later.tick()
    assert later.problem == ""
    again = place.own("host-00")
    assert again is not None
    assert again.made_unix_s == NOW + 100.0


def test_a_document_about_many_applications_stays_readable(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    daemon = Daemon(tmp_path, 0, folder).live(SAMPLES)
    file = daemon.models._file(APP, daemon.now_s)
    many = [replace(file, provenance=replace(file.provenance, lra=f"app-{n:03}")) for n in range(400)]
    federated = daemon.models._federated
    assert federated is not None
    federated.contribute(many, {each.provenance.lra: each.provenance.lra for each in many})
    said = ContributionFolder(folder).own("host-00")
    assert said is not None
    assert len(said.statistics) > 100


def test_a_later_document_has_a_later_generation_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    Daemon(tmp_path, 0, folder).live(SAMPLES).stop()
    first = ContributionFolder(folder).own("host-00")
    later = Daemon(tmp_path, 0, folder, wall_s=NOW - 100.0)  # the clock went back
    later.tick()
    later.models.model("app").samples += 1
    later.stop()
    second = ContributionFolder(folder).own("host-00")
    assert first is not None
    assert second is not None
    assert second.generation == first.generation + 1
    assert second.statistics == first.statistics


def test_a_removed_application_is_no_longer_spoken_of(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    daemon = Daemon(tmp_path, 0, folder).live(SAMPLES)
    daemon.models.save_when_due((APP,), 0.0, 1.0)
    daemon.models.save_when_due((APP,), 10.0, 1.0)
    daemon.models.forget("app", 11.0)
    daemon.wall_s += ABSENT_S + 1.0
    inline(daemon.models.follow((replace(APP, name="other"),), 12.0))
    daemon.models.model("other").samples += 1
    daemon.models.close((replace(APP, name="other"),), 13.0, save=True)
    said = ContributionFolder(folder).own("host-00")
    assert said is not None
    assert said.statistics == ()


def _spoken_of(folder: Path) -> set[str]:
    said = ContributionFolder(folder).own("host-00")
    assert said is not None
    return {each.topic.application for each in said.statistics}


def test_after_a_reboot_pods_may_come_late(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    Daemon(tmp_path, 0, folder).live(SAMPLES).stop()
    later = Daemon(tmp_path, 0, folder, wall_s=NOW + 600.0)
    later.federated.contribute((), {"other": "other"})
    assert _spoken_of(folder) == {"app"}
    later.wall_s += ABSENT_S - 1.0
    later.federated.contribute((), {"other": "other"})
    assert _spoken_of(folder) == {"app"}
    later.wall_s += 2.0
    later.federated.contribute((), {"other": "other"})
    assert _spoken_of(folder) == set()


def test_an_lra_that_is_declared_by_itself_later_speaks_for_itself(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    found = Daemon(tmp_path, 0, folder)
    found.known_as = "web"
    found.live(SAMPLES).stop()
    assert _spoken_of(folder) == {"web"}
    later = Daemon(tmp_path, 0, folder)
    later.known_as = "web"
    later.tick()
    later.known_as = "app"
    later.tick().stop()
    assert _spoken_of(folder) == {"app", "web"}, "what was learned as a replica stays for an hour"
    later.wall_s += ABSENT_S + 1.0
    later.federated.contribute((), {"app": "app"})
    assert _spoken_of(folder) == {"app"}


@pytest.mark.parametrize(
    ("host", "name"), [("node-1.example", "node-1.example"), ("a/../b", "a-..-b"), ("_x", "h_x"), ("", "h")]
)
def test_any_host_has_a_name_to_contribute_under(host: str, name: str) -> None:
    assert contributor_name(host) == name


def test_nobody_can_withdraw_a_path(tmp_path: Path) -> None:
    with pytest.raises(PerphError):
        ContributionFolder(tmp_path).withdraw("../x")
    assert list(tmp_path.iterdir()) == []


def test_hardware_is_read_from_the_host() -> None:
    from perphd.agent.federated import hardware_of
    from perphd.host.fs import RealFs
    from perphd.host.topology import read_topology

    fs = RealFs()
    found = hardware_of(fs, read_topology(fs))
    assert isinstance(found, Hardware)
    assert found.cores >= 1


def test_a_folder_that_is_mounted_later_is_read_then(folder: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    daemon = Daemon(tmp_path, 0, mounted).tick()
    mounted.mkdir()  # the mount point is there, the file system is not
    for daemon.now_s in (AGAIN_S, AGAIN_S * 1.5):
        assert daemon.tick().models.summary(APP).origin == "learned here"
    for file in folder.iterdir():
        (mounted / file.name).write_bytes(file.read_bytes())
    daemon.now_s = AGAIN_S * 1.9
    assert daemon.tick().models.summary(APP).origin == "learned here"
    daemon.now_s = AGAIN_S * 2
    assert daemon.tick().models.summary(APP).origin == "began from 4 other hosts"


def test_a_folder_is_not_read_for_a_model_that_has_learned(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 0, tmp_path / "none", contribute=False).live(SAMPLES)
    daemon.now_s += AGAIN_S
    daemon.tick()
    federated = daemon.models._federated
    assert federated is not None
    assert federated._waiting == {}


def test_what_others_say_is_pooled_outside_of_the_loop(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, 0, folder)
    federated = daemon.models._federated
    assert federated is not None
    threads = set()

    def pooled(*asked: Any) -> Any:
        threads.add(current_thread().name)
        return predictor_federated.pooled(*asked)

    monkeypatch.setattr(agent_federated, "pooled", pooled)
    monkeypatch.setattr(federated, "_inline", False)
    daemon.tick()
    for _ in range(6000):
        if daemon.tick().models.summary(APP).origin.startswith("began"):
            break
        sleep(0.01)
    assert daemon.models.summary(APP).origin == "began from 4 other hosts"
    assert threads == {"perphd-federated"}


def test_a_resumed_version_has_its_own_origin(folder: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 0, folder).tick()
    federated = daemon.models._federated
    assert federated is not None
    federated.change_version("app", "1", "2", resumed=False)  # goes on from the model of version 1
    life = daemon.models._lives["app"]
    life.origin = "started from version 1"
    assert daemon.origin.origin == "started from version 1; at first it began from 4 other hosts"
    federated.change_version("app", "2", "0", resumed=True)  # a model that learned here alone
    life.origin = "resumed, learned on host-00"
    assert daemon.origin.origin == "resumed, learned on host-00"
    assert daemon.origin.hosts == ()
    federated.change_version("app", "0", "1", resumed=True)
    assert len(daemon.origin.hosts) == 4
    federated.forget("app")
    federated.change_version("app", "", "1", resumed=True)
    assert daemon.origin.hosts == ()


def test_forecast_scores_go_with_the_models(tmp_path: Path) -> None:
    shared, worker = tmp_path / "shared", tmp_path / "worker"
    topic = Topic("forecast", "batch", "cpu_usage_cores loss", "points")
    write_scores(worker, (Statistic(topic, (0.5, -1.0), (300.0, 0.0)),))
    daemon = Daemon(tmp_path, 1, shared, forecasts=worker).live(SAMPLES)
    daemon.stop()
    own = ContributionFolder(shared).own(daemon.host.name)
    assert own is not None
    kinds = [each.topic.kind for each in own.statistics]
    assert kinds[0] == "correction"
    assert kinds[-1:] == ["forecast"]
    # An earlier process's document is no source of them: without a worker, they end.
    Daemon(tmp_path, 1, shared).live(SAMPLES).stop()
    again = ContributionFolder(shared).own(daemon.host.name)
    assert again is not None
    assert {each.topic.kind for each in again.statistics} == {"correction"}


def test_a_host_without_an_lra_contributes_its_forecast_scores(tmp_path: Path) -> None:
    shared, worker = tmp_path / "shared", tmp_path / "worker"
    daemon = Daemon(tmp_path, 1, shared, forecasts=worker)

    def wait(now_s: float) -> list[str]:
        inline(daemon.models.follow((), now_s))
        daemon.models.save_when_due((), now_s, 10.0)
        own = ContributionFolder(shared).own(daemon.host.name)
        return (
            []
            if own is None
            else [f"{own.generation - int(NOW)} {each.topic.application}" for each in own.statistics]
        )

    assert wait(0.0) == wait(20.0) == []
    assert not shared.exists(), "without scores there is nothing to say"
    topic = Topic("forecast", "batch", "cpu_usage_cores loss", "points")
    write_scores(worker, (Statistic(topic, (0.5,), (300.0,)),))
    assert wait(40.0) == ["0 batch"]
    assert wait(60.0) == ["0 batch"], "the same scores are not written again"
    os.utime(worker / "scores.json", ns=(1, 1))
    assert wait(61.0) == ["0 batch"], "it is not time"
    assert wait(80.0) == ["1 batch"]


def test_a_host_that_only_reads_contributes_no_scores(tmp_path: Path) -> None:
    shared, worker = tmp_path / "shared", tmp_path / "worker"
    write_scores(worker, ())
    daemon = Daemon(tmp_path, 1, shared, contribute=False, forecasts=worker)
    daemon.models.save_when_due((), 0.0, 10.0)
    daemon.models.save_when_due((), 20.0, 10.0)
    assert not shared.exists()


def test_with_a_clock_that_is_behind_a_model_waits_for_the_others(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(tmp_path, 0, folder, wall_s=1000.0).tick()  # a board without a battery, before NTP
    assert daemon.models.summary(APP).origin == "learned here"
    assert daemon.problem == BEHIND_OTHERS
    for daemon.now_s in (AGAIN_S, 2 * AGAIN_S):
        daemon.tick()
    assert caplog.text.count("this host's clock must be behind") == 1
    daemon.wall_s, daemon.now_s = NOW, 3 * AGAIN_S
    assert daemon.tick().models.summary(APP).origin == "began from 4 other hosts"
    assert daemon.problem == ""


def test_with_a_clock_that_is_ahead_a_model_waits_for_the_others(folder: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 0, folder, wall_s=NOW + 31 * 86400.0).tick()
    assert daemon.models.summary(APP).origin == "learned here"
    assert daemon.problem == EXPIRED_OTHERS
    daemon.wall_s, daemon.now_s = NOW, AGAIN_S
    assert daemon.tick().models.summary(APP).origin == "began from 4 other hosts"
    assert daemon.problem == ""


def test_documents_that_have_all_expired_wait_for_one_that_has_not(folder: Path, tmp_path: Path) -> None:
    for number in range(1, 5):
        redated(folder, f"host-0{number}", NOW - 31 * 86400.0)
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert daemon.problem == EXPIRED_OTHERS
    redated(folder, "host-01", NOW)
    daemon.now_s = AGAIN_S
    assert daemon.tick().problem == ""
    assert daemon.origin.outcome == TOO_LITTLE


def test_a_host_whose_clock_was_far_ahead_counts_as_soon_as_it_is_right(folder: Path, tmp_path: Path) -> None:
    redated(folder, "host-04", NOW + 45 * 86400.0)
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert [(left.contributor, left.reason) for left in daemon.origin.left_out] == [
        ("host-04", "dated 45 days in the future: check the clock of host-04")
    ]
    redated(folder, "host-04", NOW)
    daemon.models.reset(APP, 0.0)
    assert daemon.tick().models.summary(APP).origin == "began from 4 other hosts"


def test_a_host_whose_clock_is_ahead_is_named_once_and_left_out(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redated(folder, "host-04", NOW + 2 * 86400.0)
    daemon = Daemon(tmp_path, 0, folder).tick()
    assert daemon.models.summary(APP).origin == "began from 3 other hosts"
    assert [(left.contributor, left.reason) for left in daemon.origin.left_out] == [
        ("host-04", "dated 2 days in the future: check the clock of host-04")
    ]
    daemon.models.reset(APP, 0.0)
    daemon.tick()
    assert (
        caplog.text.count("host-04.json: not used: dated 2 days in the future: check the clock of host-04")
        == 1
    )
    assert daemon.problem == ""
