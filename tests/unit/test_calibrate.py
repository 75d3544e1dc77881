"""MBA in bytes per second: perphctl calibrate, what the daemon takes of it, and what policies make of that."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perphd.admission.inference import ladder
from perphd.admission.inference.bandwidth import delivered_pct, with_bandwidth
from perphd.admission.inference.inferer import untouched
from perphd.commands import calibrate as cli_calibrate
from perphd.commands.base import EXIT_INTERRUPTED
from perphd.commands.calibrate import Bench
from perphd.commands.cli import cli
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Cause
from perphd.domain.policy import HostView, WorkloadView
from perphd.domain.throttle import ThrottleCurve, ThrottleSource
from perphd.domain.topology import L3Domain
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.actuators import actuators
from perphd.host.throttle import CAPABILITY, FILE, capability, throttle_of
from rdt import BandwidthUnit
from rdt.curves import FAMILIES, Calibration, Curve, Point, family_of
from tests.unit.admission_world import topology
from tests.unit.control_fake import serving
from tests.unit.rdt_model import Model
from tests.unit.rdt_world import ROOT, World

TENS = tuple(range(10, 101, 10))
GB = 1e9
SKYLAKE = (
    "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nmodel name : Xeon\nstepping : 4\n\nprocessor : 1\n"
)


def a_calibration(machine: str = "unknown", **more: object) -> Calibration:
    """Half the levels do nothing, and 10 % leaves a tenth."""
    points = tuple(Point(level, min(level, 50) * 0.2 * GB) for level in TENS)
    curves = tuple(Curve("MB", domain, cores, "mbm", points) for domain in (0, 1) for cores in (1, 4))
    made = Calibration(machine, "2026-01-01T00:00:00+00:00", BandwidthUnit.PERCENT, 10, 10, None, curves)
    return replace(made, **more)  # type: ignore[arg-type]


def cpuinfo(world: World, text: str) -> None:
    directory = world.directory.make("/proc")
    directory.children.pop("cpuinfo", None)
    directory.add("cpuinfo", text)


def processors(world: World, busy: frozenset[int]) -> None:
    """Four cores of one thread each, two on each L3 cache, in the machine's own files."""
    cpus = world.directory.make("/sys/devices/system/cpu")
    cpus.add("online", "0-3\n")
    for cpu in range(4):
        place = world.directory.make(f"/sys/devices/system/cpu/cpu{cpu}/cache/index3")
        for name, text in (("level", "3"), ("id", str(cpu // 2)), ("size", "1024K")):
            place.add(name, f"{text}\n")
        world.directory.make(f"/sys/devices/system/cpu/cpu{cpu}/topology").add(
            "thread_siblings_list", f"{cpu}\n"
        )

    def stat() -> str:
        passed = int(world.tree.now_s * 100)
        rows = ((cpu, *((passed, 0) if cpu in busy else (0, passed))) for cpu in range(4))
        return "".join(f"cpu{cpu} {used} 0 0 {idle} 0 0 0 0\n" for cpu, used, idle in rows)

    world.directory.make("/proc").add("stat", stat)


# --- what the daemon takes -----------------------------------------------------------------------------


def test_without_a_calibration_levels_are_nominal_and_said_to_be(tmp_path: Path) -> None:
    world = World()
    found = throttle_of(world.fs, world.open().info, str(tmp_path))
    assert (found.levels, found.source, found.curves) == (TENS, ThrottleSource.NOMINAL, ())
    item = capability(found)
    assert (item.name, item.present) == (CAPABILITY, False)
    assert "nominal: never calibrated" in item.detail
    assert "perphctl calibrate" in item.remedy


def test_levels_that_make_no_difference_are_dropped(tmp_path: Path) -> None:
    world = World()
    info = world.open().info
    mode = info.bandwidths["MB"].thread_throttle_mode
    a_calibration(throttle_mode=mode).save(tmp_path / FILE)
    bounds = actuators(info, throttle_of(world.fs, info, str(tmp_path)))
    assert bounds.mba_levels_pct == (10, 20, 30, 40, 100)
    assert bounds.throttle.source is ThrottleSource.CALIBRATED
    assert {(c.domain, c.cores) for c in bounds.throttle.curves} == {(0, 1), (0, 4), (1, 1), (1, 4)}
    assert bounds.throttle.curves[0].at(30) == pytest.approx(6 * GB)
    assert capability(bounds.throttle).present


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (a_calibration("another CPU").to_json(), "measured on 'another CPU'"),
        (a_calibration(granularity=5).to_json(), "steps, the unit or the throttling mode"),
        ("{}", "not a calibration"),
        (a_calibration(curves=()).to_json(), "no curves"),
    ],
)
def test_a_calibration_that_does_not_fit_does_not_count(tmp_path: Path, written: str, why: str) -> None:
    world = World()
    info = world.open().info
    mode = info.bandwidths["MB"].thread_throttle_mode
    (tmp_path / FILE).write_text(
        written.replace('"throttle_mode": null', f'"throttle_mode": {json.dumps(mode)}')
    )
    found = throttle_of(world.fs, info, str(tmp_path))
    assert (found.levels, found.source) == (TENS, ThrottleSource.NOMINAL)
    assert why in found.note


def test_a_cpu_family_of_which_something_is_known_has_only_the_levels_that_it_has(tmp_path: Path) -> None:
    world = World()
    cpuinfo(world, SKYLAKE)
    found = throttle_of(world.fs, world.open().info, str(tmp_path))
    assert found.source is ThrottleSource.SHIPPED
    assert found.levels == (10, 20, 30, 40, 50, 60, 90, 100)
    assert "issues/69" in found.note
    assert not capability(found).present
    cpuinfo(world, SKYLAKE.replace("stepping : 4", "stepping : 7"))
    assert family_of(world.fs) is None


def test_every_shipped_default_states_its_source() -> None:
    for family in FAMILIES:
        assert family.source.startswith("github.com/")
        assert all(level < like for level, like in family.acts_like.items())


def test_absolute_units_have_no_per_cents_to_calibrate(tmp_path: Path) -> None:
    world = World("amd")
    assert throttle_of(world.fs, world.open().info, str(tmp_path)).levels == ()


# --- what policies make of it --------------------------------------------------------------------------

CURVES = tuple(
    ThrottleCurve(
        domain, cores, tuple((level, cores * gb * GB) for level, gb in ((10, 0.2), (30, 1.8), (100, 2.0)))
    )
    for domain in (0, 7)
    for cores in (1, 2)
)


def host(curves: tuple[ThrottleCurve, ...] = CURVES) -> HostView:
    two = (L3Domain(0, CpuSet.parse("0-1"), 1 << 20), L3Domain(7, CpuSet.parse("2-3"), 1 << 20))
    source = ThrottleSource.CALIBRATED if curves else ThrottleSource.NOMINAL
    return HostView(
        replace(topology(4), l3_domains=two), llc_ways=11, mba_levels_pct=(10, 30, 100), mba_source=source,
        mba_curves=curves,
    )  # fmt: skip


BATCH = (
    WorkloadView(
        WorkloadSpec("pi", Kind.BATCH, "/pi"),
        None,
        enforceable=frozenset({"llc_masks", "mba_pct"}),
        enforced=True,
    ),
)


def test_a_step_halves_the_bytes_and_not_the_per_cents() -> None:
    """30 % leaves nine tenths of the bandwidth: half of it is reached at 10 %."""
    (first, *_) = ladder.stronger(untouched(4), Cause.MBW, host(), BATCH)
    assert first.mbw_pct == 10
    (nominal, *_) = ladder.stronger(untouched(4), Cause.MBW, host(()), BATCH)
    assert nominal.mbw_pct == 30


def test_what_a_level_leaves_is_told_for_as_many_cores_as_batch_has() -> None:
    assert delivered_pct(host(), 30, 4) == pytest.approx(90.0)
    assert delivered_pct(host(()), 30, 4) == 30.0
    mild = replace(untouched(4), mbw_pct=30)
    assert ladder.batch_value(mild, 4.0, host()) > ladder.batch_value(mild, 4.0, host(()))
    in_one = with_bandwidth(host(), mild, (0,))
    assert in_one.mbw_bytes_per_s == pytest.approx(3.6 * GB)
    assert with_bandwidth(host(), mild, (0, 7)).mbw_bytes_per_s == pytest.approx(7.2 * GB)
    few = Allocation(CpuGrant(4, 2), mbw_pct=30)
    assert with_bandwidth(host(), few, (7,)).mbw_bytes_per_s == pytest.approx(1.8 * GB)


def test_a_protection_says_its_bytes_or_that_its_per_cents_are_nominal() -> None:
    held = Allocation(CpuGrant(4, 4), llc_ways=2, mbw_pct=30)
    assert str(with_bandwidth(host(), held, (0,))).endswith(
        "2 LLC ways, batch at most 3.6 GB/s (MBA 30 %, calibrated)"
    )
    nominal = with_bandwidth(host(()), held, (0,))
    assert str(nominal).endswith("neighbours' bandwidth 30 % (nominal)")
    assert nominal == held, "the same allocation: what is known of it is no part of it"


# --- perphctl calibrate --------------------------------------------------------------------------------


class Command:
    """perphctl calibrate on a model machine."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: frozenset[int] = frozenset()
    ) -> None:
        self.world = World()
        processors(self.world, busy)
        self.model = Model(self.world)
        self.state_dir = tmp_path / "state"
        self.state_dir.mkdir()
        self.config = tmp_path / "perphd.toml"
        self.config.write_text(f'[daemon]\nstate_dir = "{self.state_dir}"\n')
        monkeypatch.setattr(cli_calibrate, "open_bench", self.bench)

    def bench(self) -> Bench:
        return Bench(
            self.world.fs,
            self.world.open(),
            self.model,
            sleep=self.model.sleep,
            clock=lambda: self.world.tree.now_s,
        )

    def __call__(self, *words: str, socket: str = "/nonexistent.sock", typed: str = "") -> Result:
        words = ("--socket", socket, "calibrate", "--config", str(self.config), *words)
        return CliRunner().invoke(cli, words, input=typed)

    @property
    def saved(self) -> Path:
        return self.state_dir / FILE


@pytest.fixture
def calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    command = Command(tmp_path, monkeypatch)
    before = command.world.fs.listdir(ROOT)
    yield command
    assert command.world.fs.listdir(ROOT) == before, "the group is gone, whatever happened"
    assert command.model.running is None


def test_it_asks_first_and_says_how_long_it_takes(calibrate: Command) -> None:
    refused = calibrate(typed="n\n")
    assert refused.exit_code == 1
    assert "at most 1 minute (" in refused.stdout
    assert not calibrate.saved.exists()
    assert calibrate(typed="y\n").exit_code == 0
    assert Calibration.load(calibrate.saved).curves


def test_what_it_saved_is_what_the_daemon_takes(calibrate: Command) -> None:
    result = calibrate("--yes", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["path"] == str(calibrate.saved)
    assert answer["curves"][0]["useful_levels"] == [10, 20, 30, 40, 100]
    world = calibrate.world
    found = throttle_of(world.fs, world.open().info, str(calibrate.state_dir))
    assert found.source is ThrottleSource.CALIBRATED
    assert found.levels == (10, 20, 30, 40, 100)


def test_a_dry_run_does_nothing(calibrate: Command) -> None:
    result = calibrate("--dry-run", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["dry_run"] is True
    assert not calibrate.saved.exists()
    assert calibrate.world.writes == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_session_that_breaks_off_leaves_no_group(
    calibrate: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before, sleep = signal.signal(number, signal.SIG_IGN), calibrate.model.sleep

    def interrupted(seconds: float) -> None:
        sleep(seconds)
        if calibrate.model.running is not None:
            assert "rdtcal.probe" in calibrate.world.fs.listdir(ROOT)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(calibrate.model, "sleep", interrupted)
    try:
        result = calibrate("--yes")
        assert signal.getsignal(number) is signal.SIG_IGN, "as it was"
    finally:
        signal.signal(number, before)
    assert result.exit_code == EXIT_INTERRUPTED
    assert not calibrate.saved.exists()


def test_curves_of_other_domains_stay(calibrate: Command) -> None:
    assert calibrate("--yes", "--domains", "0", "--cores", "1").exit_code == 0
    assert calibrate("--yes", "--domains", "1", "--cores", "1").exit_code == 0
    assert [(c.domain, c.cores) for c in Calibration.load(calibrate.saved).curves] == [(0, 1), (1, 1)]
    assert calibrate("--yes", "--domains", "x").exit_code == 2


def test_it_is_bounded(calibrate: Command) -> None:
    result = calibrate("--yes", "--limit", "5")
    assert result.exit_code == 1
    assert "(limit 5 s)" in result.stderr


def test_it_refuses_while_perphd_enforces(calibrate: Command, tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.agent.set_mode(Mode.ENFORCE)
        result = calibrate("--yes", socket=served.socket)
        assert result.exit_code == 1
        assert "perphctl mode observe" in result.stderr
        assert not calibrate.saved.exists()


def test_it_refuses_on_a_busy_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command(tmp_path, monkeypatch, busy=frozenset({0, 2}))
    result = command("--yes")
    assert result.exit_code == 1
    assert "the host is busy" in result.stderr
    assert command.world.writes == []
