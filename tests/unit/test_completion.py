"""bash completion: what a key press offers, without starting any program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.commands import daemon
from perphd.commands.cli import cli
from perphd.commands.cli import main as perphctl_main
from perphd.commands.completion import bash
from perphd.config.file import Config
from perphd.control.kept_file import NAME, NamesFile
from tests.unit.control_fake import FakeAgent

BASH = shutil.which("bash") or ""
pytestmark = pytest.mark.skipif(not BASH, reason="needs bash")


@pytest.fixture
def names(tmp_path: Path) -> Path:
    file = tmp_path / "names"
    file.write_text("lra mysql\nlra redis-1\nbatch nightly\n")
    return file


def offered(line: str, names: Path, program: str = "perphctl") -> set[str]:
    """What is offered at the end of this line, in a shell that cannot start a program."""
    script = bash(program, cli if program == "perphctl" else daemon.main)
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _{program}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", "-c", script + ask],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/nonexistent", "PERPHD_NAMES": str(names)},
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_commands_and_options(names: Path):
    assert {"status", "init", "doctor", "lra", "--json"} <= offered("perphctl ", names)
    assert offered("perphctl sta", names) == {"status"}
    assert offered("perphctl lra ", names) >= {"add", "list", "rm"}
    assert {"--at", "--limit", "--verbose"} <= offered("perphctl explain --", names)
    assert offered("perphd config ", names, "perphd") >= {"check"}


def test_names_of_workloads(names: Path):
    assert offered("perphctl explain ", names) >= {"mysql", "redis-1", "nightly"}
    assert offered("perphctl explain my", names) == {"mysql"}
    assert offered("perphctl --json pause red", names) == {"redis-1"}
    assert offered("perphctl mode --workload n", names) == {"nightly"}
    assert offered("perphctl lra rm my", names) == {"mysql"}
    assert offered("perphctl lra add my", names) == set()
    assert offered("perphctl explain my", names.with_name("none")) == set()


def test_values_of_choices(names: Path):
    assert offered("perphctl mode ", names) >= {"observe", "enforce"}
    assert offered("perphctl lra add --mode ", names) == {"observe", "enforce"}


def test_every_command_is_in_the_script():
    script = bash("perphctl", cli)
    for name in cli.commands:
        assert f'"{name}") words=' in script


async def test_the_daemon_keeps_the_names(tmp_path: Path):
    agent = FakeAgent(Config())
    status = agent.status()
    kept = NamesFile(str(tmp_path / "perphd.sock"), None, lambda: status)
    kept.look()
    file = tmp_path / NAME
    assert file.read_text() == "lra db\nlra cache\nbatch pi\n"
    assert file.stat().st_mode & 0o777 == 0o600
    status = replace(status, workloads=status.workloads[:1])
    kept.look()
    assert file.read_text() == "lra db\n"
    await kept.start()
    await kept.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("perphctl explain ", ["mysql", "my shop", "report"]),
        ("perphctl explain m", ["mysql", "my shop"]),
        ("perphctl events --workload r", ["report"]),
        ("perphctl lra add m", []),
    ],
)
def test_zsh_and_fish_complete_workload_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    expected: list[str],
) -> None:
    """Their scripts ask perphctl itself."""
    (tmp_path / "workloads").write_text("lra mysql\nlra my shop\nbatch report\n")
    monkeypatch.setenv("PERPHD_NAMES", str(tmp_path / "workloads"))
    monkeypatch.setenv("_PERPHCTL_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        perphctl_main()
    assert capsys.readouterr().out.splitlines()[1::3] == expected
