"""The shipped units, groups and folders, judged by systemd's own programs and by what the code uses."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perphd.agent.config import DaemonConfig

UNITS = Path(__file__).parents[2] / "systemd"


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (Debian package systemd)")
    return found


def _unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((UNITS / name).read_text())
    return parser


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    verify = _tool("systemd-analyze")
    # The programs are not installed where the tests run; everything else is checked as shipped.
    service = re.sub(r"/usr/bin/perph(d|ctl)\b", "/bin/true", (UNITS / "perphd.service").read_text())
    (tmp_path / "perphd.service").write_text(service)
    shutil.copy(UNITS / "perphd.slice", tmp_path)
    done = subprocess.run(
        [verify, "verify", "--man=no", str(tmp_path / "perphd.service"), str(tmp_path / "perphd.slice")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr, "systemd warns about our units"


def test_the_groups_are_those_of_the_configuration(tmp_path: Path) -> None:
    sysusers = _tool("systemd-sysusers")
    (tmp_path / "etc").mkdir()
    subprocess.run([sysusers, f"--root={tmp_path}", str(UNITS / "perphd.sysusers")], check=True, timeout=30)
    groups = {line.split(":")[0] for line in (tmp_path / "etc/group").read_text().splitlines()}
    defaults = DaemonConfig()
    assert groups == {defaults.read_group, defaults.admin_group}


@pytest.mark.requires_root
def test_the_folders_are_those_of_the_configuration(tmp_path: Path) -> None:
    tmpfiles = _tool("systemd-tmpfiles")
    subprocess.run(
        [tmpfiles, "--create", f"--root={tmp_path}", str(UNITS / "perphd.tmpfiles")], check=True, timeout=30
    )
    defaults = DaemonConfig()
    state = tmp_path / defaults.state_dir.lstrip("/")
    assert state.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / defaults.socket.lstrip("/")).parent.is_dir()
    service = _unit("perphd.service")["Service"]
    assert defaults.state_dir == f"/var/lib/{service['StateDirectory']}"
    assert str(Path(defaults.socket).parent) == f"/run/{service['RuntimeDirectory']}"


def test_the_daemon_is_watched_and_what_it_changed_comes_back() -> None:
    service = _unit("perphd.service")["Service"]
    assert service["Type"] == "notify"
    assert service["WatchdogSec"] == "30s"
    assert service["Restart"] == "on-failure"
    assert "perphd restore" in service["ExecStopPost"]
    # Not after a clean stop: on_stop = "keep" would be undone.
    assert '"$$SERVICE_RESULT" = success ||' in service["ExecStopPost"]
    # Read-only control groups would make every enforcement fail.
    assert service["ProtectControlGroups"] == "no"
