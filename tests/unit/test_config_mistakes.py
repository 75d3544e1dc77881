"""``perphd config check`` names every mistake of a file, and nothing that only follows from one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from perphd.commands.cli import cli
from perphd.commands.daemon import main
from perphd.config.file import load, refusals
from perphd.config.lines import line_of, with_line

THREE = """
[daemon]
period_s = "fast"
modee = "observe"

[[lra]]
name = "db"
cgroup = "/db"
max_latency_ms = 5
[lra.sli]
source = "mysq"

[[lra]]
cgroup = "/other"
touch = "some"

[[batch]]
name = "pi"
cgroup = "relative"

[[notify]]
name = "r"
"""


FORMER = """
[host]
root = "/mnt"
[daemon]
policy = "none"
[contention]
disks = true
[[lra]]
name = "db"
cgroup = "/db"
version_from = "none"
[lra.policy]
settle_s = 1
[[notify]]
name = "r"
command = "/bin/true"
after_s = 1
"""


def test_every_key_in_a_former_place_is_named_with_its_line_and_its_place(tmp_path: Path) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text(FORMER)
    said = [str(with_line(refused)).removeprefix(str(path)) for refused in refusals(path)]
    assert sorted(said) == [
        ":11: lra[0].version_from: is now lra[0].tuning.version_from (allowed: version_from below [lra.tuning])",
        ":12: lra[0].policy: has been replaced (allowed: its keys below [lra.tuning])",
        ":17: notify[0].after_s: is now notify[0].tuning.after_s (allowed: after_s below [notify.tuning])",
        ":3: host.root: is now tuning.host.root (allowed: root below [tuning.host])",
        ":5: daemon.policy: is now tuning.daemon.policy (allowed: policy below [tuning.daemon])",
        ':7: contention.disks: has been replaced (allowed: devices = "disks")',
    ]


def test_every_mistake_is_named_once_with_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text(THREE)
    found = {refused.key: str(refused) for refused in refusals(path)}
    assert set(found) == {
        "daemon.period_s",
        "daemon.modee",
        "lra[0].sli.source",
        "lra[1].name",
        "lra[1].touch",
        "batch[0].cgroup",
        "notify[0]",
    }
    assert "did you mean 'mode'" in found["daemon.modee"]
    assert "'fast'" in found["daemon.period_s"]
    assert "0.1 to 60" in found["daemon.period_s"]
    shown = CliRunner().invoke(main, ["config", "check", str(path)])
    assert shown.exit_code == 1
    assert len(shown.output.splitlines()) == len(found)
    told = [text.removeprefix(f"{path}") for text in found.values()]
    assert all(text in shown.output for text in told)
    asked = CliRunner().invoke(cli, ["config", "check", str(path)])
    assert asked.exit_code == 1
    assert all(text in " ".join(asked.output.split()) for text in told)


@pytest.mark.parametrize(
    "text", ["", "[daemon]\n", '[[batch]]\nname = "pi"\ncgroup = "/pi"\n'], ids=["empty", "table", "batch"]
)
def test_a_file_without_mistakes_has_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text(text)
    assert refusals(path) == ()


def test_mistakes_of_drop_ins_are_named_with_their_file(tmp_path: Path) -> None:
    path, folder = tmp_path / "perphd.toml", tmp_path / "conf.d"
    folder.mkdir()
    path.write_text("[daemon]\nperiod_s = 0\n")
    (folder / "10.toml").write_text("[store]\nenabled = 3\n")
    assert [refused.source for refused in refusals(path)] == [str(path), str(folder / "10.toml")]
    path.write_text('[metrics]\nlisten = "0.0.0.0:1"\n')
    (folder / "10.toml").write_text('[metrics]\ntls_cert = "/c"\ntls_key = "/k"\nbearer_token_file = "/t"\n')
    assert refusals(path) == (), "files complete each other"


def test_what_is_no_toml_or_no_table_is_one_mistake(tmp_path: Path) -> None:
    path = tmp_path / "perphd.toml"
    for text in ("[daemon", "lra = 3\n", "daemon = 3\n", "[[lra]]\n", "lra = [3]\n"):
        path.write_text(text)
        assert len(refusals(path)) == 1, text


def test_a_refused_match_is_not_missing_as_well(tmp_path: Path) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text('[[lra]]\nname = "db"\nmatch = "service:db"\n')
    assert [mistake.key for mistake in refusals(path)] == ["lra[0].match"]


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text(THREE)
    lines = THREE.splitlines()
    for command, words in ((main, ["config", "check"]), (cli, ["config", "check"])):
        told = CliRunner().invoke(command, [*words, str(path)]).output
        named = re.findall(re.escape(str(path)) + r":(\d+): ([\w.\[\]]+):", told)
        assert len(named) >= 5, told
        for number, key in named:
            here, last = lines[int(number) - 1], key.rpartition(".")[2]
            assert here.startswith((f"{last} =", "[[")), (key, here)


def test_the_line_of_a_key_is_found_behind_texts_of_several_lines() -> None:
    text = 'a = """\n[[lra]]\nx = 1\n"""\n[[lra]]\nname = "a"\n[lra.sli]\nsource = 1\n[[lra]]\n"name" = 2\n'
    assert line_of(text, "lra[0].name") == 6
    assert line_of(text, "lra[0].sli.source") == 8
    assert line_of(text, "lra[1].name") == 10
    assert line_of(text, "lra[1].cgroup") == 9, "the table that lacks it"
    assert line_of(text, "batch[0].name") is None


def test_perphd_config_check_answers_in_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text("[daemon]\nperiod_s = 1\n")
    monkeypatch.setattr("sys.argv", ["perphd", "config", "check", "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["sources"] == [str(path)]


def test_a_home_stands_for_the_folder_of_whoever_starts_perphd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "perphd.toml"
    path.write_text('[daemon]\nstate_dir = "~/state"\nsocket = "~/state/s"\n')
    found = load(path).daemon
    assert (found.state_dir, found.socket) == (f"{tmp_path}/state", f"{tmp_path}/state/s")
    path.write_text('[daemon]\nstate_dir = "~/../x"\n')
    assert len(refusals(path)) == 1
