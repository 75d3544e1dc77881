"""perphctl model contribute and model withdraw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perphd.agent.contribution_folder import ContributionFolder
from perphd.commands.cli import cli
from perphd.federated.contribution import Contribution
from perphd.federated.hardware import Hardware

HARDWARE = Hardware("Intel Xeon", 8)


def perphctl(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ContributionFolder(tmp_path).write(Contribution("good", 1, 1.0, HARDWARE))
    return tmp_path


def test_a_host_is_withdrawn_and_reinstated(folder: Path) -> None:
    done = perphctl("model", "withdraw", str(folder), "good")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"good: its contribution is no longer used: {folder}/good.withdrawn\n"
    assert ContributionFolder(folder).read()[0].counting() == ()
    done = perphctl("model", "withdraw", str(folder), "good", "--undo", "--json")
    assert json.loads(done.stdout) == {"schema": 1, "host": "good", "withdrawn": False}
    assert len(ContributionFolder(folder).read()[0].counting()) == 1


def test_a_name_without_a_file_is_withdrawn_with_a_warning(folder: Path) -> None:
    done = perphctl("model", "withdraw", str(folder), "godo")
    assert done.exit_code == 0
    assert "has no file of godo now: check the name" in done.stderr


@pytest.mark.parametrize("name", ["../x", "", "-x", "a b", "a/b", "a\n", "x" * 64])
@pytest.mark.parametrize("more", [(), ("--undo",)])
def test_a_name_that_no_file_can_have_is_refused(folder: Path, name: str, more: tuple[str, ...]) -> None:
    outside = folder.parent / "x.withdrawn"
    outside.write_text("not perphd's")
    done = perphctl("model", "withdraw", *more, "--", str(folder), name)
    assert done.exit_code == 1
    assert "is not a valid name for a host's file (allowed: 1 to 63 letters" in done.stderr
    assert outside.exists()
    assert [file.name for file in folder.iterdir()] == ["good.json"]


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    done = perphctl("model", "withdraw", str(tmp_path / "none"), "good")
    assert done.exit_code == 1
    assert "there is no such folder" in done.stderr
    assert not (tmp_path / "none").exists()
