"""Several models per application: which version runs, and what becomes of the models when another one does."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest

from perphd.agent.model_life import LOOKS_PER_TICK, VERSION_LOOK_S
from perphd.agent.models import Models
from perphd.agent.records import Records
from perphd.commands.render_model import list_parts
from perphd.config.workloads import read_workload, to_table
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.errors import ConfigError
from perphd.domain.policy import ModelContext
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.host.app_version import MOST_TEXT, AppVersions, Version
from perphd.host.cgroup import discover
from perphd.predictor import Observation, Registry
from perphd.predictor.files import KEPT_GONE, KEPT_GONE_S, KEPT_VERSIONS, ModelFiles
from perphd.sim.host import SimHost
from tests.unit.inline import HeldCall, inline

DB = WorkloadSpec("db", Kind.LRA, "/app/db", sli=SliSpec("push"))
NO_LOAD = Unavailable("no load signal")


# -- which version runs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    st_size: int
    st_mtime_ns: int
    st_mode: int = 0o100755
    st_dev: int = 1
    st_ino: int = 1


class Host:
    """A few files of a host with cgroup v2, and what stat(2) says of programs."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {
            "/proc/self/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "/sys/fs/cgroup/cgroup.controllers": b"cpu memory\n",
            "/sys/fs/cgroup/cgroup.procs": b"",
            "/sys/fs/cgroup/app/db/cgroup.procs": b"",
        }
        self.programs: dict[str, Facts] = {}
        self.asked: list[str] = []

    def process(self, pid: int, ticks: int, started: int, program: str, *arguments: str) -> None:
        fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, str(started), "0"]
        self.files[f"/proc/{pid}/stat"] = f"{pid} (a b) c) {' '.join(fields)}\n".encode()
        self.files[f"/proc/{pid}/cmdline"] = "".join(f"{word}\0" for word in (program, *arguments)).encode()
        self.files["/sys/fs/cgroup/app/db/cgroup.procs"] += f"{pid}\n".encode()

    def facts(self, path: str) -> Facts:
        self.asked.append(path)
        if path not in self.programs:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return self.programs[path]

    def versions(self) -> AppVersions:
        from perphd.domain.errors import Gone

        files = self.files

        class Fs:
            def read(self, path: str) -> bytes:
                if path not in files:
                    raise Gone(path, "read", errno.ENOENT)
                return files[path]

            def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
                return 0, self.read(path)[:most_bytes]

            def exists(self, path: str) -> bool:
                return path in files or any(name.startswith(f"{path}/") for name in files)

            def listdir(self, path: str) -> list[str]:
                return sorted({n[len(path) + 1 :].split("/")[0] for n in files if n.startswith(f"{path}/")})

            def subdirectories(self, path: str) -> list[str]:
                return [n for n in self.listdir(path) if f"{path}/{n}" not in files]

        fs = Fs()
        return AppVersions(fs, discover(fs), self.facts)  # type: ignore[arg-type]


def test_a_program_is_known_by_its_file_and_known_again_after_a_roll_back() -> None:
    host = Host()
    host.process(7, 1, 100, "/bin/sh")  # it only started the server
    host.process(8, 900, 101, "/usr/sbin/mysqld")
    host.programs = {"/bin/sh": Facts(1, 1), "/usr/sbin/mysqld": Facts(5000, 10)}
    versions = host.versions()
    first = versions.look(DB)
    assert isinstance(first, str)
    assert first.startswith("mysqld-")
    host.programs["/usr/sbin/mysqld"] = Facts(6000, 20)
    assert versions.look(DB) == first  # a new package is on disk, the old program still runs
    host.files["/sys/fs/cgroup/app/db/cgroup.procs"] = b""
    host.process(9, 5, 300, "/usr/sbin/mysqld")
    second = versions.look(DB)
    assert second != first
    host.programs["/usr/sbin/mysqld"] = Facts(5000, 10)  # another inode, the same file
    host.files["/sys/fs/cgroup/app/db/cgroup.procs"] = b""
    host.process(10, 5, 400, "/usr/sbin/mysqld")
    assert versions.look(DB) == first


def test_a_program_without_a_path_is_looked_for_and_one_that_cannot_be_seen_is_said() -> None:
    host = Host()
    host.process(8, 900, 101, "redis-server *:6379")
    assert "cannot be examined" in str(host.versions().look(DB))
    host.programs["/proc/8/exe"] = Facts(5000, 10)
    assert str(host.versions().look(DB)).startswith("redis-server-")
    host.files["/sys/fs/cgroup/app/db/cgroup.procs"] = b""
    assert host.versions().look(DB) == Unavailable("none of the workload's processes can be read")


@pytest.mark.parametrize(
    ("busiest", "master", "program", "name"),
    [
        ("/usr/sbin/nginx: worker process", "x", "/usr/sbin/nginx", "nginx"),
        ("nginx: worker process", "nginx: master process /usr/sbin/nginx -g", "/usr/sbin/nginx", "nginx"),
        # Not where programs are looked for by their names: the one that was started with its path tells it.
        (
            "postgres: 16/main: writer",
            "/usr/lib/pg/16/bin/postgres",
            "/usr/lib/pg/16/bin/postgres",
            "postgres",
        ),
        ("/opt/my app/bin/serve", "x", "/opt/my app/bin/serve", "my"),
    ],
)
def test_programs_that_set_their_own_titles(busiest: str, master: str, program: str, name: str) -> None:
    host = Host()  # no /proc/PID/exe may be read
    host.process(7, 3, 100, "/bin/bash", "/srv/start")
    host.process(8, 10, 101, master)
    host.process(9, 900, 102, busiest)
    host.programs = {"/bin/bash": Facts(1, 1), program: Facts(5000, 10)}
    versions = host.versions()
    first = versions.look(DB)
    assert str(first).startswith(f"{name}-")
    for pid, title in ((8, master), (9, busiest)):
        changed = title.replace("writer", "idle").replace("worker process", "shutting down")
        host.files[f"/proc/{pid}/cmdline"] = f"{changed}\0\0\0".encode()
    host.programs[program] = Facts(6000, 20)  # a new package is on disk, the old program still runs
    assert versions.look(DB) == first
    assert host.versions().look(DB) != first


def test_a_shell_is_not_taken_for_what_it_started() -> None:
    host = Host()
    host.process(7, 3, 100, "/bin/bash", "/srv/start")
    host.process(8, 900, 101, "unknown: at work")
    host.programs = {"/bin/bash": Facts(1, 1)}
    assert "process 8" in str(host.versions().look(DB))
    host.process(9, 1000, 102, "/bin/bash", "/srv/work")  # this one works itself
    assert str(host.versions().look(DB)).startswith("bash-")


@pytest.mark.parametrize("exe", [True, False])
def test_a_process_that_becomes_another_program_is_looked_at_anew(exe: bool) -> None:
    host = Host()
    host.process(8, 900, 101, "/usr/sbin/db", "--flag")
    host.programs = {"/usr/sbin/db": Facts(5000, 10)}
    if exe:
        host.programs["/proc/8/exe"] = Facts(5000, 10, st_ino=5)
    versions = host.versions()
    first = versions.look(DB)
    host.programs["/usr/sbin/db"] = Facts(6000, 20)
    assert versions.look(DB) == first
    if exe:  # execve(2): the same number and start
        host.programs["/proc/8/exe"] = Facts(6000, 20, st_ino=6)
    else:
        host.files["/proc/8/cmdline"] = b"/usr/sbin/db\0--flag\0--again\0"
    assert versions.look(DB) != first


@pytest.mark.parametrize("path", ["/net/away/db", "/srv/db", "/usr/../net/away/db", "./db", "//usr/db"])
def test_where_a_file_may_never_answer_nothing_is_looked_at(path: str) -> None:
    host = Host()
    host.process(8, 900, 101, path)
    host.programs[path] = Facts(5000, 10)
    found = host.versions().look(DB)
    assert isinstance(found, Unavailable)
    assert set(host.asked) == {"/proc/8/exe"}
    assert path.startswith(".") or "command lines are trusted only for files in /usr/" in str(found)
    host.programs["/proc/8/exe"] = Facts(5000, 10)
    assert str(host.versions().look(DB)).startswith("db-")


def test_a_container_is_known_by_its_image() -> None:
    host, cid = Host(), "a" * 64
    spec = replace(DB, cgroup=f"/system.slice/docker-{cid}.scope")
    assert isinstance(host.versions().look(spec), Unavailable)
    described = {"Image": "sha256:12ab", "Name": "/db", "Config": {"Labels": {"version": "8.4"}}}
    host.files[f"/var/lib/docker/containers/{cid}/config.v2.json"] = json.dumps(described).encode()
    assert host.versions().look(spec) == "sha256:12ab"
    assert host.versions().look(replace(spec, version_from="label:version")) == "8.4"
    missing = host.versions().look(replace(spec, version_from="label:tag"))
    assert missing == Unavailable("the container has no label 'tag'")


def test_a_file_may_say_it_and_nothing_but_versions_is_shown() -> None:
    host = Host()
    spec = replace(DB, version_from="file:/srv/db/VERSION")
    assert isinstance(host.versions().look(spec), Unavailable)
    host.files["/srv/db/VERSION"] = b"\n 8.0.36-2 (main)\n"
    assert "main" not in str(host.versions().look(spec))  # brackets are no part of a version: a digest
    host.files["/srv/db/VERSION"] = b"\n 8.0.36-2\nrest\n"
    assert host.versions().look(spec) == "8.0.36-2"
    host.files["/srv/db/VERSION"] = b"root:$6$secret:1:"
    assert "secret" not in str(host.versions().look(spec))
    host.files["/srv/db/VERSION"] = b"9" * 4000
    assert len(str(host.versions().look(spec))) == MOST_TEXT
    assert isinstance(host.versions().look(replace(DB, version_from="none")), Unavailable)


def test_on_a_simulated_host_there_are_no_programs_and_nothing_breaks() -> None:
    host = SimHost([])
    assert isinstance(AppVersions(host.fs, discover(host.fs), None).look(DB), Unavailable)


@pytest.mark.parametrize("value", ["", "exe", "file:relative", "label:", "auto:x", "file:/a\0b", 7])
def test_what_says_nothing_of_a_version_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="version_from"):
        read_workload(
            Kind.LRA, {"name": "db", "cgroup": "/db", "tuning": {"version_from": value}}, "x.toml", "lra[0]"
        )


def test_where_the_version_comes_from_is_read_and_written() -> None:
    table = {"name": "db", "cgroup": "/db", "tuning": {"version_from": "file:/srv/VERSION"}}
    assert to_table(read_workload(Kind.LRA, table, "x.toml", "lra[0]")) == table


# -- what becomes of the models ------------------------------------------------------------------------------


class Running:
    """Says what version of each LRA runs."""

    def __init__(self) -> None:
        self.now: dict[str, Version] = {}
        self.looks = 0
        self.seen: set[str] = set()

    def look(self, spec: WorkloadSpec) -> Version:
        self.looks += 1
        self.seen.add(spec.name)
        return self.now.get(spec.name, Unavailable("not running"))

    def forget(self, name: str) -> None:
        self.now.pop(name, None)


class Daemon:
    """One life of a daemon on a host where an application is deployed, again and again."""

    def __init__(self, path: Path, wall_s: float = 1e9, in_thread: bool = False) -> None:
        self.running, self.now_s, self.wall_s = Running(), 0.0, wall_s
        self.records = Records(None, lambda: self.wall_s)
        self.models = Models(
            Registry(),
            ModelFiles(path),
            self.records,
            lambda: self.wall_s,
            "here",
            4,
            versions=self.running,
            in_thread=in_thread,
        )

    def deployed(self, version: Version, work: float, seconds: int = 40) -> None:
        """This version runs, and does so much work undisturbed."""
        self.running.now["db"] = version
        self.now_s += VERSION_LOOK_S
        self.models._wait(self.now_s)  # the disk is fast
        for _ in range(seconds):
            self.now_s += 1.0
            self.wall_s += 1.0
            inline(self.models.follow((DB,), self.now_s))
            sample = Sample(
                "db", self.now_s, 1.0, cpu_usage_cores=1.0, run_delay_cores=0.1, work_rate_per_s=work
            )
            seen = Observation(sample, Allocation(CpuGrant(4, 4)), ModelContext(1.0, 0.0, 4.0), True)
            self.models.model("db").observe(seen)
            self.models.save_when_due((DB,), self.now_s, 60.0)
        self.models._wait(self.now_s)  # for the thread that writes

    def stop(self) -> None:
        self.models.close((DB,), self.now_s, save=True)

    @property
    def work(self) -> float:
        band = self.models.model("db").reference("work:sli", NO_LOAD)
        assert band is not None
        return band.value

    @property
    def support(self) -> float:
        band = self.models.model("db").reference("work:sli", NO_LOAD)
        assert band is not None
        return band.support


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models"


def test_a_new_version_begins_from_the_last_one_and_follows_its_own_samples_at_once(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.deployed("1.1", 1000.0, seconds=1)
    assert daemon.work == pytest.approx(1000.0, rel=0.01)  # known from the start, as a beginning ...
    assert daemon.support <= 6.0
    assert daemon.models.summary(DB).origin == "started from version 1.0"
    assert daemon.models.summary(DB).samples == 1
    daemon.deployed("1.1", 700.0, seconds=20)
    assert daemon.work == pytest.approx(700.0, rel=0.05)  # ... and given up for what it does itself
    daemon.stop()


def test_a_roll_back_takes_the_earlier_model_up_again(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.deployed("1.1", 500.0)
    assert daemon.work == pytest.approx(500.0, rel=0.01)
    daemon.deployed("1.0", 1000.0, seconds=1)
    assert daemon.work == pytest.approx(1000.0, rel=0.01)
    assert daemon.support > 20.0
    summary = daemon.models.summary(DB)
    assert (summary.version, summary.earlier_versions) == ("1.0", 1)
    assert summary.origin == "resumed, learned on here"
    assert daemon.records.problems == ()
    daemon.stop()


def test_an_upgrade_while_perphd_was_down_is_one_all_the_same(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.stop()
    later = Daemon(path, daemon.wall_s + 60.0)
    later.deployed("2.0", 800.0, seconds=25)
    assert later.models.summary(DB).origin == "started from version 1.0"
    later.stop()
    back = Daemon(path, later.wall_s + 60.0)
    back.deployed("1.0", 1000.0, seconds=1)
    assert back.work == pytest.approx(1000.0, rel=0.01)
    back.stop()


def test_what_cannot_be_told_changes_nothing_and_a_file_of_before_is_of_whatever_runs(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed(Unavailable("no such file"), 1000.0)
    daemon.deployed("1.0", 1000.0)
    assert daemon.support > 30.0
    daemon.deployed(Unavailable("gone"), 1000.0)
    daemon.deployed("1.0", 1000.0)
    assert daemon.support > 30.0
    assert daemon.models.summary(DB).earlier_versions == 0
    daemon.stop()


async def test_the_loop_goes_on_while_the_model_of_a_version_is_read(path: Path) -> None:
    earlier = Daemon(path)
    for version in ("1.0", "1.1"):
        earlier.deployed(version, 1000.0, seconds=3)
    earlier.stop()
    daemon = Daemon(path, earlier.wall_s, in_thread=True)
    await daemon.models.follow((DB,), 0.0)
    reader = HeldCall(daemon.models._files.load_version)
    daemon.models._files.load_version = reader  # type: ignore[method-assign, assignment]
    daemon.running.now["db"] = "1.0"
    following = asyncio.create_task(daemon.models.follow((DB,), daemon.now_s + VERSION_LOOK_S))
    await reader.let_go()
    await following
    assert daemon.models.summary(DB).origin == "resumed, learned on here"
    daemon.stop()


def test_only_some_versions_are_kept_and_a_reset_forgets_them(path: Path) -> None:
    daemon = Daemon(path)
    for n in range(KEPT_VERSIONS + 4):
        daemon.deployed(f"1.{n}", 1000.0, seconds=3)
    assert daemon.models.summary(DB).earlier_versions == KEPT_VERSIONS
    daemon.models.reset(DB, daemon.now_s)
    assert daemon.models.summary(DB).earlier_versions == 0
    daemon.stop()


def test_a_damaged_model_of_a_version_is_said_and_the_present_one_stays(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.deployed("1.1", 1000.0)
    (kept,) = (path / "versions" / "db").glob("*.json")
    kept.write_text(kept.read_text().replace('"samples":', '"samples":9', 1))
    daemon.deployed("1.0", 1000.0, seconds=1)
    assert "checksum is wrong" in daemon.records.problems[0]
    assert daemon.work == pytest.approx(1000.0, rel=0.01)
    daemon.stop()


def test_many_lras_are_looked_at_a_few_at_a_time(path: Path) -> None:
    daemon = Daemon(path)
    specs = [replace(DB, name=f"db{n}", cgroup=f"/app/db{n}") for n in range(7)]
    for tick in range(4):
        before = daemon.running.looks
        inline(daemon.models.follow(specs, float(tick)))
        assert daemon.running.looks - before <= LOOKS_PER_TICK
    assert daemon.running.looks == 7
    daemon.models.close((), 4.0, save=False)


def test_where_ticks_are_long_the_last_of_the_list_have_their_look_too(path: Path) -> None:
    daemon = Daemon(path)
    specs = [replace(DB, name=f"db{n}", cgroup=f"/app/db{n}") for n in range(7)]
    for tick in range(4):
        inline(daemon.models.follow(specs, tick * 2 * VERSION_LOOK_S))
    assert daemon.running.seen == {spec.name for spec in specs}
    daemon.models.close((), 1e3, save=False)


def test_an_application_that_is_back_goes_on_with_the_model_of_its_version(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.deployed("1.1", 500.0)
    daemon.models.forget("db", daemon.now_s)
    daemon.deployed("1.1", 500.0, seconds=1)
    assert daemon.work == pytest.approx(500.0, rel=0.01)
    assert daemon.support > 20.0
    summary = daemon.models.summary(DB)
    assert (summary.version, summary.earlier_versions) == ("1.1", 1)
    daemon.models.forget("db", daemon.now_s)
    daemon.deployed("1.0", 1000.0, seconds=1)
    assert daemon.work == pytest.approx(1000.0, rel=0.01)
    assert daemon.support > 20.0
    assert daemon.records.problems == ()
    daemon.stop()


def test_an_application_that_is_back_as_another_version_begins_from_the_last_one(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.models.forget("db", daemon.now_s)
    daemon.deployed("2.0", 800.0, seconds=1)
    assert daemon.models.summary(DB).origin == "started from version 1.0"
    assert daemon.support <= 6.0
    daemon.stop()


def test_work_that_is_counted_otherwise_takes_the_versions_along(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0)
    daemon.deployed("1.1", 500.0)
    other = replace(DB, sli=None)
    daemon.models.keep_if_counted_alike(DB, other, daemon.now_s)
    assert not (path / "versions" / "db").exists()
    daemon.models.close((), daemon.now_s, save=False)


def test_what_went_long_ago_or_is_too_much_goes_for_good(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path)
    for n in range(KEPT_GONE + 3):
        files.keep_version(f"db{n}", "1", "{}")
        os.utime(tmp_path / "versions" / f"db{n}", (n, n))
    files.drop_gone(("db0",), KEPT_GONE_S)
    left = {entry.name for entry in (tmp_path / "versions").iterdir()}
    assert left == {"db0"} | {f"db{n}" for n in range(3, KEPT_GONE + 3)}  # it runs; and the last ones
    files.drop_gone(("db0",), KEPT_GONE_S + 10.5)
    left = {entry.name for entry in (tmp_path / "versions").iterdir()}
    assert left == {"db0"} | {f"db{n}" for n in range(11, KEPT_GONE + 3)}


def test_the_list_of_models_shows_versions(path: Path) -> None:
    daemon = Daemon(path)
    daemon.deployed("1.0", 1000.0, seconds=3)
    daemon.deployed("1.1", 1000.0, seconds=3)
    (part,) = list_parts([daemon.models.summary(DB)])
    assert "1.1 (+1 earlier)" in str(part)
    daemon.stop()


def test_a_slow_disk_delays_a_change_of_version_and_not_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, real, go = Daemon(path), ModelFiles.save, Event()
    daemon.deployed("1.0", 1000.0)

    def save(*asked: str) -> None:
        go.wait(10.0)
        real(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelFiles, "save", save)
    daemon.models._lives["db"].saved_samples = -1
    daemon.models.save_when_due((DB,), daemon.now_s + 600.0, 60.0)
    daemon.running.now["db"] = "1.1"
    daemon.now_s += VERSION_LOOK_S
    inline(daemon.models.follow((DB,), daemon.now_s))
    assert daemon.models.summary(DB).version == "1.0", "it does not wait"
    go.set()
    daemon.models._wait(daemon.now_s)
    inline(daemon.models.follow((DB,), daemon.now_s))
    assert daemon.models.summary(DB).version == "1.1"
    daemon.stop()


async def test_requests_that_need_the_files_let_the_loop_run_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, real, go = Daemon(path), ModelFiles.save, Event()
    daemon.deployed("1.0", 1000.0)

    def save(*asked: str) -> None:
        go.wait(10.0)
        real(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelFiles, "save", save)
    daemon.models._lives["db"].saved_samples = -1
    daemon.models.save_when_due((DB,), daemon.now_s + 600.0, 60.0)
    waiting = asyncio.ensure_future(daemon.models.written())
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    await waiting
    daemon.models.reset(DB, daemon.now_s)
    assert daemon.models.summary(DB).samples == 0
    daemon.stop()
