"""Files, drop-ins, workloads that were added at run time, and the host that all of it is for."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perphd.commands.cli import cli
from perphd.commands.daemon import main as daemon_main
from perphd.config.file import Config, load
from perphd.config.host_check import check_against_host
from perphd.config.restore import CONFIG_REMEDY, RestorePlace, for_restore
from perphd.config.workloads import forget_runtime, read_runtime, remember_runtime
from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.fs import RealFs
from perphd.isolation.instances import InstanceRegister
from perphd.isolation.restore_report import RestoreReport


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "perphd.toml"
    path.write_text(f'[daemon]\nstate_dir = "{tmp_path}/state"\n')
    return path


def drop_in(main: Path, name: str, text: str) -> None:
    directory = main.parent / "conf.d"
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(text)


def test_drop_ins_in_order_of_their_names(main: Path):
    drop_in(main, "20-b.toml", '[daemon]\nperiod_s = 3\n[[batch]]\nname = "b"\ncgroup = "/b"')
    drop_in(
        main, "10-a.toml", '[daemon]\nperiod_s = 2\nmode = "enforce"\n[[batch]]\nname = "a"\ncgroup = "/a"'
    )
    drop_in(main, "ignored.txt", "no TOML")
    drop_in(main, ".hidden.toml", "no TOML")
    config = load(main)
    assert config.daemon.period_s == 3
    assert config.daemon.mode == "enforce"
    assert [spec.name for spec in config.workloads] == ["a", "b"]
    assert [Path(source).name for source in config.sources] == ["perphd.toml", "10-a.toml", "20-b.toml"]


def test_a_refusal_names_the_drop_in(main: Path):
    drop_in(main, "x.toml", "[daemon]\nperiod_s = 0")
    with pytest.raises(ConfigError, match=r"conf\.d/x\.toml: daemon\.period_s"):
        load(main)


def test_conflicts_over_files_name_both(main: Path):
    drop_in(main, "1.toml", '[[batch]]\nname = "a"\ncgroup = "/a"')
    drop_in(main, "2.toml", '[[batch]]\nname = "b"\ncgroup = "/a/b"')
    with pytest.raises(ConfigError, match=r"2\.toml: batch\[0\]\.cgroup.*1\.toml"):
        load(main)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * ((1 << 20) + 1)])
def test_files_that_are_no_text(main: Path, content: bytes):
    main.write_bytes(content)
    with pytest.raises(ConfigError, match=r"perphd\.toml"):
        load(main)


def test_missing_file_and_directory(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load("a\x00b")


def test_a_file_that_everybody_may_change_is_refused(main: Path):
    main.chmod(0o666)
    with pytest.raises(ConfigError, match="is world-writable"):
        load(main)


def test_workloads_added_at_run_time(main: Path, tmp_path: Path):
    state = f"{tmp_path}/state"
    lra = WorkloadSpec("db", Kind.LRA, "/db", sli=SliSpec("push", (("max_age_s", "3"),)))
    remember_runtime(state, WorkloadSpec("db", Kind.LRA, "/old"))
    remember_runtime(state, lra)
    remember_runtime(state, WorkloadSpec("pi", Kind.BATCH, "/pi"))
    config = load(main)
    assert config.workloads == (lra, WorkloadSpec("pi", Kind.BATCH, "/pi"))
    assert config.runtime == ("db", "pi")
    assert load(main, runtime=False).workloads == ()
    assert forget_runtime(state, "pi")
    assert not forget_runtime(state, "pi")
    assert [item.spec for item in read_runtime(state)] == [lra]
    assert os.listdir(state) == ["workloads.toml"]


def test_a_declared_workload_wins_over_one_added_at_run_time(main: Path, tmp_path: Path):
    remember_runtime(f"{tmp_path}/state", WorkloadSpec("db", Kind.LRA, "/db"))
    remember_runtime(f"{tmp_path}/state", WorkloadSpec("x", Kind.BATCH, "/x"))
    drop_in(main, "1.toml", '[[lra]]\nname = "other"\ncgroup = "/db"')
    config = load(main)
    assert [spec.name for spec in config.workloads] == ["other", "x"]
    assert config.runtime == ("x",)
    assert "'db', added at run time, is ignored" in config.warnings[0]


@pytest.mark.parametrize("text", ["[daemon]\nperiod_s = 1", "[[lra]]\nname = 'x'", "x", "\xff"])
def test_a_damaged_run_time_file_is_named(main: Path, tmp_path: Path, text: str):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/workloads.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"state/workloads\.toml"):
        load(main)


def test_a_state_directory_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be"):
        remember_runtime(f"{tmp_path}/state", WorkloadSpec("x", Kind.BATCH, "/x"))


# --- against the host ------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> RealFs:
    root = tmp_path / "host"
    for path in (
        "cpu/batch",
        "cpu/app/db",
        "v2/app/db",
        "v2/system.slice",
        "v2/system.slice/mariadb.service",
    ):
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "cgroup.procs").write_text("")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("4:cpu:/system/perphd.service\n0::/own/deep\n")
    return RealFs(root)


HIERARCHIES = Hierarchies(
    Layout.HYBRID, Hierarchy(2, "/v2", frozenset()), {"cpu": Hierarchy(1, "/cpu", frozenset({"cpu"}))}
)


def check(host: RealFs, *cgroups: str) -> list[str]:
    specs = tuple(WorkloadSpec(f"w{i}", Kind.LRA, path) for i, path in enumerate(cgroups))
    return check_against_host(Config(workloads=specs, sources=("perphd.toml",)), host, HIERARCHIES)


def test_existing_groups_are_fine(host: RealFs):
    assert check(host, "/app/db", "/batch") == []


def test_a_missing_group_is_waited_for_with_a_suggestion(host: RealFs):
    (warning,) = check(host, "/mariadb.service")
    assert "does not exist (did you mean /system.slice/mariadb.service?)" in warning
    assert "waits for it" in warning


@pytest.mark.parametrize(
    ("cgroup", "where"),
    [
        ("/system/perphd.service", "the cpu hierarchy"),
        ("/system", "the cpu hierarchy"),
        ("/own", "the unified hierarchy"),
        ("/own/deep", "the unified hierarchy"),
    ],
)
def test_perphd_never_takes_the_group_it_lives_in(host: RealFs, cgroup: str, where: str):
    with pytest.raises(ConfigError, match=where) as caught:
        check(host, cgroup)
    assert "contains perphd itself" in str(caught.value)


def test_groups_beside_and_below_its_own_are_fine(host: RealFs):
    assert len(check(host, "/own/deeper", "/own/deep/below", "/system/perphd.service2")) == 3


def test_a_host_without_cgroups(tmp_path: Path):
    fs = RealFs(tmp_path)
    config = Config(workloads=(WorkloadSpec("x", Kind.LRA, "/x"),))
    assert len(check_against_host(config, fs, Hierarchies(Layout.NONE, None, {}))) == 1


@pytest.fixture
def register(tmp_path: Path) -> InstanceRegister:
    return InstanceRegister(str(tmp_path / "run" / "journals"))


BROKEN = [None, "[daemon", "[daemon]\nstate_dir = 7\n"]


@pytest.mark.parametrize("text", BROKEN)
def test_where_to_restore_is_guessed_only_if_nobody_knows(
    tmp_path: Path, register: InstanceRegister, text: str | None
) -> None:
    path = tmp_path / "perphd.toml"
    if text is not None:
        path.write_text(text)
    warnings: list[str] = []
    found = for_restore(path, warnings.append, register)
    assert found == RestorePlace(("/var/lib/perphd",), "", is_guessed=True)
    assert str(path) in warnings[0]
    assert "guess, use --state-dir" in warnings[0]
    for_restore(path, warnings.append, register, CONFIG_REMEDY)
    assert "guess, use --config" in warnings[1]


@pytest.mark.parametrize("text", BROKEN)
def test_a_daemon_leaves_word_where_its_journal_is(
    tmp_path: Path, register: InstanceRegister, text: str | None
) -> None:
    path = tmp_path / "perphd.toml"
    if text is not None:
        path.write_text(text)
    register.enter(str(tmp_path), str(path))
    register.enter(str(tmp_path / "run"), str(tmp_path / "another.toml"))
    warnings: list[str] = []
    assert for_restore(path, warnings.append, register) == RestorePlace((str(tmp_path),))
    assert str(tmp_path) in warnings[0]


def test_a_mistake_anywhere_does_not_hide_the_journal(tmp_path: Path, register: InstanceRegister) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text(
        '[daemon]\nmoed = "enforce"\nstate_dir = "/elsewhere"\n[tuning.host]\nroot = "/mnt"\n[[lra]]\n'
    )
    warnings: list[str] = []
    assert for_restore(path, warnings.append, register) == RestorePlace(("/elsewhere",), "/mnt")
    assert "moed" in warnings[0]
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "20.toml").write_text('[daemon]\nstate_dir = "/later"\n')
    assert for_restore(path, warnings.append, register).state_dirs == ("/later",)
    path.chmod(0o666)  # anybody might have named a journal of his own
    assert for_restore(path, warnings.append, register).is_guessed


@pytest.mark.parametrize("table", ["host", "tuning.host"])
@pytest.mark.parametrize("mistake", ["", 'mod = "enforce"\n'])
def test_a_simulated_host_is_not_restored_on_this_machine(
    tmp_path: Path, register: InstanceRegister, table: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n{mistake}[{table}]\nkind = "simulated"\n')
    place = for_restore(path, lambda _: None, register)
    assert place == RestorePlace((str(tmp_path),), is_simulated=True)

    opened: list[Any] = []

    def restore_each(_fs: object, state_dirs: Any, *_: object) -> RestoreReport:
        opened.append(state_dirs)
        return RestoreReport()

    monkeypatch.setattr(import_module("perphd.isolation.restore"), "restore_each", restore_each)
    for command, words in (
        (daemon_main, ["restore"]),
        (cli, ["--socket", str(tmp_path / "none"), "restore"]),
    ):
        done = CliRunner().invoke(command, [*words, "--config", str(path)])
        assert (done.exit_code, opened) == (0, [])
        assert "a simulated host ends with its daemon" in done.output
        done = CliRunner().invoke(command, [*words, "--config", str(path), "--state-dir", "/var/lib/named"])
        assert (done.exit_code, opened.pop()) == (0, ("/var/lib/named",)), (
            "a folder that is named is searched"
        )


def test_a_file_that_became_simulated_does_not_hide_what_a_real_daemon_left(
    tmp_path: Path, register: InstanceRegister
) -> None:
    """Systemd restores after a crash with the configuration of now, which need not be the daemon's."""
    path = tmp_path / "perphd.toml"
    path.write_text('[tuning.host]\nkind = "simulated"\n')
    register.enter("/var/lib/perphd", str(path))
    place = for_restore(path, pytest.fail, register)
    assert place == RestorePlace(("/var/lib/perphd",))
    assert not place.nothing_to_do()


def test_a_state_directory_that_was_changed_is_looked_into_as_well(
    tmp_path: Path, register: InstanceRegister
) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text('[daemon]\nstate_dir = "/elsewhere"\n')
    assert for_restore(path, pytest.fail, register) == RestorePlace(("/elsewhere",))
    register.enter(str(tmp_path), str(path))
    assert for_restore(path, pytest.fail, register) == RestorePlace(("/elsewhere", str(tmp_path)))
    path.write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n')
    assert for_restore(path, pytest.fail, register) == RestorePlace((str(tmp_path),))
    path.write_text('[daemon]\nstate_dir = "/simulated"\n[tuning.host]\nroot = "/mnt"\n')
    assert for_restore(path, pytest.fail, register) == RestorePlace(("/simulated",), "/mnt"), "another host"
