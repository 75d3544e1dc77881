"""``python -m rdt``: what people see, on every machine there is."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rdt
from perphd.sim.kernel.resctrl import MACHINES
from rdt import RealFs
from rdt.__main__ import Program, main
from rdt.calibrate import PREFIX
from rdt.curves import Calibration
from rdt.fs import Fs
from tests.unit.rdt_model import Model, sysfs
from tests.unit.rdt_world import ROOT, World

PACKAGE = Path(rdt.__file__).parent
SHOWN = Path(__file__).parents[1] / "fixtures" / "rdt_show"
MIB = 1 << 20


def run(world: World, *arguments: str, sleep: Callable[[float], None] | None = None) -> str:
    out = io.StringIO()
    program = Program(world.fs, out, sleep=sleep or world.sleep, clock=lambda: world.tree.now_s)
    assert main(arguments, program) == 0
    return out.getvalue()


def furnished(machine: str) -> World:
    """With a group that has less than everything, a monitor group, and something in the cache."""
    world = World(machine)
    if world.tree.machine.can_allocate:
        world.mkdir("web")
        for line in world.text("web/schemata").splitlines():
            name = line.split(":")[0].strip()
            first = line.split(":")[1].split("=")[0]
            value = {"L": "7", "M": "20", "S": "64"}[name[0]]
            world.write("web/schemata", f"{name}:{first}={value}\n")
        world.write("web/tasks", "10\n")
        world.write("web/cpus_list", "1-2\n")
    if world.tree.monitor:
        world.mkdir("mon_groups/spare")
        unit = world.tree.monitor.units(world.tree.monitor.domains()[0])[0]
        world.tree.account("mon_groups/spare", unit, llc_bytes=3 * MIB)
    return world


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_every_machine_is_shown(machine: str) -> None:
    """To accept a new text: RDT_ACCEPT_SHOWN=1, and read the difference."""
    path = SHOWN / f"{machine}.txt"
    shown = run(furnished(machine), "show")
    if os.environ.get("RDT_ACCEPT_SHOWN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert shown == path.read_text()
    assert max(map(len, shown.splitlines())) <= 200


def test_only_groups_that_were_asked_for() -> None:
    world = furnished("captured")
    shown = run(world, "show", "web")
    assert shown.partition("\n\n")[2] == (
        "/web: 1 task, CPUs 1-2\n"
        "  MB        0: 20 %    1: 100 %\n"
        "  L3        0: 007 ........###   1: 7ff ###########\n"
        "  held      0: 0.0 MiB   1: 0.0 MiB\n"
    )
    assert "\n/mon_groups/spare: 0 tasks\n" in run(world, "show", "/mon_groups/spare")


def test_what_cannot_be_done_is_told_in_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    world = furnished("captured")
    assert main(["show", "nobody"], Program(world.fs, io.StringIO())) == 1
    assert capsys.readouterr().err == "rdt: no group /nobody (allowed: /, /mon_groups/spare, /web)\n"
    world.tree.umount()
    assert main(["show"], Program(world.fs, io.StringIO())) == 1
    assert capsys.readouterr().err.startswith("rdt: opening resctrl at /sys/fs/resctrl: ")
    assert main(["calibrate", "--show", str(tmp_path / "none.json")], Program(world.fs, io.StringIO())) == 1
    assert "none.json" in capsys.readouterr().err
    for wrong in (
        ["watch", "--interval", "0"],
        ["watch", "--interval", "x"],
        ["calibrate", "--cores", "a"],
        [],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(wrong)
        assert stopped.value.code == 2


def test_watching_shows_rates_and_why_there_are_none() -> None:
    world = furnished("captured")

    def sleep(seconds: float) -> None:
        world.sleep(seconds)
        world.tree.account("web", 0, llc_bytes=2 * MIB, mbm_total_bytes=8e9, mbm_local_bytes=6e9)

    assert world.tree.monitor is not None
    world.tree.monitor.set_condition(1, "mbm_local_bytes", "Unavailable")
    shown = run(world, "watch", "--interval", "2", "--count", "2", "web", sleep=sleep)
    first, second, rest = shown.split("\n\n")
    assert rest == ""
    assert first.partition("\n")[2] == second.partition("\n")[2]
    assert first.splitlines()[1:] == [
        "GROUP  DOMAIN     HELD MiB   TOTAL GB/s   LOCAL GB/s",
        "/web        0         2.00         4.00         3.00",
        "            1         0.00         0.00    untracked",
        "          all         2.00         4.00    untracked",
        "  untracked: the hardware does not count this group at the moment",
    ]


def test_watching_follows_groups_that_come_and_go() -> None:
    world = World("one-socket")
    steps = iter(
        [lambda: world.mkdir("late"), lambda: None, lambda: world.fs.rmdir(f"{ROOT}/late"), lambda: None]
    )

    def sleep(seconds: float) -> None:
        world.sleep(seconds)
        next(steps)()

    blocks = run(world, "watch", "--count", "3", sleep=sleep).split("\n\n")
    assert ["late" in block for block in blocks] == [True, True, False, False]


class Whole:
    """A machine: its resctrl simulated, everything else from files below a directory."""

    def __init__(self, world: World, files: RealFs) -> None:
        self._world, self._files = world, files

    def __getattr__(self, name: str) -> object:
        def chosen(path: str, *more: object, **named: object) -> object:
            return getattr(self._world.fs if path.startswith(ROOT) else self._files, name)(
                path, *more, **named
            )

        return chosen


def machine(tmp_path: Path) -> tuple[World, Model, Fs]:
    """CPUs 0, 1 share cache 0, CPUs 2, 3 cache 1; all idle."""
    lines = [f"cpu{cpu} 10 0 0 100 0\n" for cpu in range(4)]
    files = sysfs(tmp_path, "".join(lines))
    cpus = tmp_path / "sys/devices/system/cpu"
    (cpus / "online").write_text("0-3\n")
    for cpu in range(4):
        (cpus / f"cpu{cpu}/cache/index3/id").write_text(f"{cpu // 2}\n")
        (cpus / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu}\n")
    world = World()
    whole: Fs = Whole(world, files)  # type: ignore[assignment]
    return world, Model(world), whole


def test_calibrating_from_plan_to_file(tmp_path: Path) -> None:
    world, model, fs = machine(tmp_path)

    def sleep(seconds: float) -> None:
        model.sleep(seconds)
        lines = [f"cpu{cpu} 10 0 0 {100 + int(world.tree.now_s * 100)} 0\n" for cpu in range(4)]
        (tmp_path / "proc/stat").write_text("".join(lines))

    def calibrate(*arguments: str) -> str:
        out = io.StringIO()
        program = Program(fs, out, prober=model, sleep=sleep, clock=lambda: world.tree.now_s)
        assert main(["calibrate", *arguments], program) == 0
        return out.getvalue()

    path = tmp_path / "mba.json"
    assert calibrate("--dry-run", "--domains", "1", "--cores", "1,2") == (
        "MB: 10 levels, at most 15 s in all\n"
        "  domain 1: streams on CPUs 2\n"
        "  domain 1: streams on CPUs 2, 3\n"
    )
    assert model.started == 0
    assert not path.exists()
    told = calibrate("--out", str(path), "--domains", "0", "--cores", "1")
    assert told.endswith(f"levels that make a difference: 10 20 30 40 100\nwritten to {path}\n")
    calibrate("--out", str(path), "--domains", "1", "--cores", "2")
    kept = Calibration.load(path)
    assert [(each.domain, each.cores) for each in kept.curves] == [(0, 1), (1, 2)]
    assert kept.machine == "A Model @ 2 GHz"
    assert f"{PREFIX}.probe" not in world.fs.listdir(ROOT)
    shown = calibrate("--show", str(path))
    assert "MB domain 1, 2 cores streaming, by the kernel's counters" in shown
    assert "      90     22.50 GB/s  ########################################  makes no difference\n" in shown
    assert "      10      4.50 GB/s  ########\n" in shown


def test_busy_cores_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, model, fs = machine(tmp_path)  # nothing in /proc/stat moves: nobody is known to idle
    program = Program(fs, io.StringIO(), prober=model, sleep=model.sleep, clock=lambda: world.tree.now_s)
    assert main(["calibrate"], program) == 1
    assert "0 cores of domain 0 are idle, 1 are needed" in capsys.readouterr().err


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    """In a process of its own, on a tree in a directory."""
    world = furnished("captured")

    def copy(path: str) -> None:
        (tmp_path / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for name in world.fs.listdir(path):
            try:
                data = world.fs.read(f"{path}/{name}")
            except IsADirectoryError:
                copy(f"{path}/{name}")
            else:
                (tmp_path / f"{path}/{name}".lstrip("/")).write_bytes(data)

    copy(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "rdt", "show", "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == (SHOWN / "captured.txt").read_text()


def test_the_tour_in_the_readme_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World("captured")
    before = world.fs.listdir(ROOT)
    monkeypatch.setattr("rdt.resctrl.RealFs", lambda: world.fs)
    monkeypatch.setattr("time.sleep", world.sleep)
    tour = (PACKAGE / "README.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", tour, re.MULTILINE | re.DOTALL):
        exec(block, names)
    told = capsys.readouterr().out.splitlines()
    assert told[:4] == [
        "8 control groups, the default one included",
        "L3 11 ways in domains (0, 1)",
        "wrote L3:0=f MB:0=50 and to undo it: L3:0=7ff MB:0=100",
        "1f ()",
    ]
    assert told[4].startswith("domain 0 (11 ways): 12 exclusive ways are wanted")
    assert [line.split()[0] for line in told[5:7]] == ["0", "1"]
    assert told[7].startswith("50 False not calibrated")
    assert world.fs.listdir(ROOT) == before


def test_the_reference_has_every_public_name() -> None:
    """Else: python -m tools.rdt_api > rdt/docs/api.md."""
    page = (PACKAGE / "docs" / "api.md").read_text()
    heads = set(re.findall(r"^### `?([A-Za-z_]+)", page, re.MULTILINE))
    constants = {"DEFAULT_GROUP", "DEFAULT_ROOT", "Reading", "TidSource"}
    assert set(rdt.__all__) - constants <= heads
    for module in PACKAGE.glob("[a-z]*.py"):
        assert f"## rdt.{module.stem}\n" in page
