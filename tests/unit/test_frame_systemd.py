"""The shipped units, groups and folders, judged by systemd's own programs and by what the code uses."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perphd.agent.upkeep import OWN_NICE
from perphd.config.file import DaemonConfig, parse
from perphd.domain.workload import Mode

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
DEBIAN = ROOT / "packaging/debian"
NAMES = [
    path.name
    for path in sorted(UNITS.iterdir())
    if path.suffix in (".service", ".socket", ".slice", ".mount", ".timer")
]
MOST_EXPOSED = 3.0


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
    for name in NAMES:
        # The programs are not installed where the tests run; everything else is checked as shipped.
        (tmp_path / name).write_text(
            re.sub(r"/usr/bin/perph(d(-yarn|-slurm)?|ctl)\b", "/bin/true", (UNITS / name).read_text())
        )
    done = subprocess.run(
        [verify, "verify", "--man=no", *(str(tmp_path / name) for name in NAMES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr, "systemd warns about our units"


def test_the_service_is_confined() -> None:
    analyze = _tool("systemd-analyze")
    done = subprocess.run(
        [analyze, "security", "--no-pager", "--offline=true", str(UNITS / "perphd.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    if "offline" in done.stderr:
        pytest.skip("needs a systemd-analyze that knows --offline (systemd 250)")
    found = re.search(r"Overall exposure level for perphd.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= MOST_EXPOSED
    capabilities = set(_unit("perphd.service")["Service"]["CapabilityBoundingSet"].split())
    assert not capabilities & {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_SETUID", "CAP_BPF"}
    explained = (UNITS / "README.md").read_text()
    for name in capabilities - {"CAP_DAC_OVERRIDE"}:
        assert name in explained, "every power it has is explained"


def test_the_dashboard_is_no_root_and_stays_on_this_host() -> None:
    service = _unit("perphd-dashboard.service")["Service"]
    assert service["DynamicUser"] == "yes"
    assert service["Group"] == DaemonConfig().read_group
    assert service["CapabilityBoundingSet"] == ""
    assert (service["IPAddressDeny"], service["IPAddressAllow"]) == ("any", "localhost")
    assert "--admin" not in service["ExecStart"]


def test_shipping_is_off_and_without_powers() -> None:
    unit, timer = _unit("perphd-ship.service"), _unit("perphd-ship.timer")
    assert not unit.has_section("Install"), "only the timer is enabled, by the operator"
    service = unit["Service"]
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert service["ReadWritePaths"] == DaemonConfig().state_dir
    assert service["LoadCredential"] == "perphd-ship", "without a path: the credential may be missing"
    assert timer["Timer"]["Persistent"] == "yes"
    rules = (DEBIAN / "rules").read_text()
    assert "systemd/*.timer" in rules
    assert "perphd-ship" not in rules, "no helper of the package enables or starts it"


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
    assert '"$$SERVICE_RESULT/$$EXIT_CODE" = success/exited ||' in service["ExecStopPost"]
    # Read-only control groups would make every enforcement fail.
    assert service["ProtectControlGroups"] == "no"
    assert int(service["Nice"]) == OWN_NICE


def test_a_daemon_does_not_start_into_the_restoring_of_what_its_predecessor_left() -> None:
    restore = _unit("perphd-restore.service")
    assert restore["Unit"]["Before"] == "perphd.service"
    assert restore["Service"]["ExecStart"].endswith("perphd restore")
    assert restore["Service"]["Type"] == "oneshot", "it has started when it is through"
    assert restore["Service"]["TimeoutStartSec"], "and the daemon does not wait for ever"
    assert _unit("perphd.service")["Unit"]["OnFailure"] == "perphd-restore.service"


def test_the_socket_is_the_configurations_and_goes_with_the_service() -> None:
    defaults = DaemonConfig()
    socket = _unit("perphd.socket")
    assert socket["Socket"]["ListenStream"] == defaults.socket
    assert socket["Socket"]["SocketGroup"] == defaults.read_group
    assert socket["Socket"]["SocketMode"] == "0660"
    # Else those who may only ask would start a daemon that an administrator stopped.
    assert socket["Unit"]["PartOf"] == "perphd.service"
    assert "Install" not in socket
    service = _unit("perphd.service")
    assert service["Unit"]["Requires"] == service["Service"]["Sockets"] == "perphd.socket"
    # The socket's folder must not go with the service's own end.
    assert service["Service"]["RuntimeDirectoryPreserve"] == "yes"


def test_what_is_optional_is_off_and_the_slices_set_nothing() -> None:
    assert "perphd" not in _unit("sys-fs-resctrl.mount")["Install"]["WantedBy"]
    assert "sys-fs-resctrl.mount" not in (DEBIAN / "rules").read_text()
    assert "perphd-dashboard" not in (DEBIAN / "rules").read_text()
    for name in ("lra.slice", "batch.slice"):
        assert all(key.endswith("Accounting") for key in _unit(name)["Slice"])


def test_the_packages_configuration_observes_and_names_nothing() -> None:
    text = (DEBIAN / "perphd.toml").read_text()
    config = parse(text, "perphd.toml")
    assert config.daemon.mode is Mode.OBSERVE
    assert config.workloads == ()
    # What is commented out is right too.
    uncommented = re.sub(r"^# (?=\[|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    assert [spec.name for spec in parse(uncommented, "perphd.toml").workloads] == ["mariadb", "batch"]


def test_the_package_has_the_version_and_the_pins_of_the_project() -> None:
    from perphd import __version__

    changelog = (DEBIAN / "changelog").read_text()
    assert re.match(rf"perphd \({re.escape(__version__)}[)+~-]", changelog)
    pins = [_pins(ROOT / name) for name in ("requirements/runtime.txt", "requirements/dev.txt")]
    packaged = _pins(DEBIAN / "requirements.txt")
    assert pins[0].items() <= packaged.items(), "make lock"
    assert packaged.items() <= pins[1].items(), "make lock"
    assert {"systemd-python", "dbus-fast", "pyroute2"} <= packaged.keys()
    assert not {"highspy", "lightgbm", "river", "scipy"} & packaged.keys()


def test_installing_compiles_whatever_the_daemons_start_imports() -> None:
    later = re.search(r"(?m)^later='\^/usr/lib/perphd/\((.*)\)\\b'$", (DEBIAN / "postinst").read_text())
    assert later is not None
    left = re.compile(rf"({later[1]})\b")
    code = (
        "import sys, perphd.commands.cli, perphd.commands.daemon, perphd.agent.service, perphd.control.servers\n"
        "print(*(name.replace('.', '/') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    found = done.stdout.split()
    assert "aiohttp" in found
    # The package has no start-up files; those of a checkout's environment may import anything.
    start = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert [name for name in found if left.match(name) and name not in start.stdout.split()] == []
    assert _unit("perphd.service")["Unit"]["Wants"] == "perphd-bytecode.service"


def _pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", path.read_text(), re.MULTILINE))
