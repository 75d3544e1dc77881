"""perphctl calibrate: measure what each level of memory bandwidth throttling delivers on this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import EXIT_INTERRUPTED, EXIT_NOT_PERMITTED, Out, command, warn
from perphd.commands.number import Number
from perphd.control.client import NotPermitted, Unreachable
from perphd.domain.errors import PerphError

if TYPE_CHECKING:
    from rdt.calibrate import Plan
    from rdt.curves import Curve
    from rdt.fs import Fs
    from rdt.probe import CacheShare, Prober
    from rdt.resctrl import Resctrl

DEFAULT_CONFIG = "/etc/perphd/perphd.toml"
LIMIT_S: Final = 300.0
"""Longest duration of a calibration, unless the operator allows more."""
IDLE_SHARE: Final = 0.75
"""Share of a domain's cores that must be idle, since other memory traffic would distort the measurement."""


_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a calibration like Ctrl-C; a lost session sends SIGHUP."""


class CannotCalibrate(PerphError):
    """This host cannot be calibrated at present; the text states the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The environment of a calibration. ``prober``: starts the streams; None: processes on this machine.

    ``sleep``, ``clock``: waiting, and monotonic seconds.
    """

    fs: Fs
    resctrl: Resctrl
    prober: Prober | None = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def open_bench() -> Bench:
    """Open this machine's resctrl. Raises rdt.ResctrlError if it is not mounted."""
    from rdt import DEFAULT_ROOT, RealFs, Resctrl, find_mount

    fs = RealFs("/")
    mount = find_mount(fs)
    return Bench(fs, Resctrl.open(fs, DEFAULT_ROOT if mount is None else mount.path))


def add_calibrate_command(group: click.Group) -> None:
    """Add ``calibrate`` to the group."""

    @command(group)
    @click.option("--domains", metavar="N,N", help="Measure only these L3 domains.")
    @click.option(
        "--cores", metavar="N,N", help="Numbers of streaming cores [default: 1, half, all idle ones]."
    )
    @click.option(
        "--limit",
        "limit_s",
        type=Number(1, 3600),
        default=LIMIT_S,
        show_default=True,
        help="Longest duration, in seconds.",
    )
    @click.option("--yes", "-y", is_flag=True, help="Start without asking.")
    @click.option("--dry-run", is_flag=True, help="Print the plan, and do nothing.")
    @click.option(
        "--config",
        "config_path",
        default=DEFAULT_CONFIG,
        show_default=True,
        help="Configuration file that names the state directory.",
    )
    def calibrate(
        out: Out,
        domains: str | None,
        cores: str | None,
        limit_s: float,
        yes: bool,
        dry_run: bool,
        config_path: str,
    ) -> None:
        """Measure the bandwidth that each throttling level delivers.

        Memory streams run on idle cores, in a separate resctrl group that is removed at the end; meanwhile every
        other program on the machine gets less memory bandwidth. The command states the duration and asks before it
        begins. It refuses while perphd enforces any setting or while over a quarter of a domain's cores are busy. The
        result is kept in the state directory; a running daemon uses it within a minute.
        """
        from perphd.host.throttle import FILE
        from rdt import ResctrlError

        state_dir, root = _place(config_path)
        if root:
            raise CannotCalibrate(
                f"the configuration describes the host in {root}: calibrate on that host itself"
            )
        _refuse_while_enforcing(out)
        try:
            bench = open_bench()
            plan = plan_for(bench, _numbers(domains, "--domains"), _numbers(cores, "--cores"), limit_s)
            answer = {
                "path": str(Path(state_dir) / FILE),
                "seconds": plan.seconds,
                "levels": list(plan.levels),
            }
            answer["curves"] = [{"domain": step.domain, "cores": len(step.cpus)} for step in plan.steps]
            if not out.as_json or dry_run:
                out.say({**answer, "dry_run": dry_run}, *described(plan))
            if dry_run:
                return
            if not yes:
                click.confirm("Calibrate now?", abort=True, err=True)
            saved = run(bench, plan, Path(state_dir) / FILE, lambda line: click.echo(line, err=True))
        except ResctrlError as exc:
            raise CannotCalibrate(str(exc)) from exc
        except KeyboardInterrupt:
            click.echo("perphctl: interrupted: the streams have ended and the group is removed", err=True)
            sys.exit(EXIT_INTERRUPTED)
        answer["curves"] = [_as_json(curve) for curve in saved]
        out.say(answer, f"saved: {answer['path']}; a running daemon uses it within a minute")


def plan_for(
    bench: Bench, domains: Sequence[int] | None, cores: Sequence[int] | None, limit_s: float
) -> Plan:
    """The plan for the cores that are idle at present.

    Raises:
        CannotCalibrate: the host is busy.
        rdt.ResctrlError: bandwidth cannot be throttled here, or the calibration would take too long.
    """
    from rdt.calibrate import plan
    from rdt.probe import idle_cores, l3_domains

    shares = l3_domains(bench.fs)
    idle = {domain: idle_cores(bench.fs, share.cores, sleep=bench.sleep) for domain, share in shares.items()}
    _refuse_when_busy(shares, idle, domains)
    return plan(bench.resctrl.info, idle, domains=domains, core_counts=cores, limit_s=limit_s)


def _refuse_when_busy(
    shares: Mapping[int, CacheShare], idle: Mapping[int, Sequence[object]], domains: Sequence[int] | None
) -> None:
    for domain, share in shares.items():
        if domains is not None and domain not in domains:
            continue
        if len(idle[domain]) < IDLE_SHARE * len(share.cores):
            raise CannotCalibrate(
                f"the host is busy: {len(idle[domain])} of {len(share.cores)} cores of domain {domain} are idle, "
                f"{IDLE_SHARE:.0%} are needed; calibrate when no other work runs"
            )


def described(plan: Plan) -> list[str]:
    """The plan as sentences."""
    minutes = max(1, round(plan.seconds / 60))
    first = f"This fills the memory channels for at most {minutes} minute{'' if minutes == 1 else 's'}"
    lines = [f"{first} ({plan.seconds:.0f} s): {len(plan.levels)} levels, {len(plan.steps)} curves."]
    for step in plan.steps:
        lines.append(f"  domain {step.domain}: streams on CPUs {', '.join(map(str, step.cpus))}")
    return lines


def run(bench: Bench, plan: Plan, path: Path, told: Callable[[str], None]) -> tuple[Curve, ...]:
    """Measure and save, keeping the file's curves of other domains. SIGTERM and SIGHUP end the calibration like Ctrl-C.

    Raises:
        rdt.ResctrlError: the calibration failed; nothing is saved, the streams have ended, the group is removed.
    """
    from rdt import Gone, Groups, ResctrlError
    from rdt.calibrate import PREFIX, Calibrator
    from rdt.curves import Calibration
    from rdt.probe import ProcessProber, machine_name

    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDING}
    try:
        groups = Groups(bench.resctrl, PREFIX, sleep=bench.sleep, clock=bench.clock)
        prober = bench.prober or ProcessProber()
        curves = Calibrator(groups, prober, sleep=bench.sleep, clock=bench.clock, report=told).run(plan)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    info, machine = bench.resctrl.info.bandwidths[plan.resource], machine_name(bench.fs)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    kept: tuple[Curve, ...] = ()
    try:
        old = Calibration.load(path)
        kept = () if old.misfit(info, machine) else old.curves
    except Gone:
        pass
    except ResctrlError as exc:
        told(f"the previous calibration is replaced: {exc}")
    fresh = Calibration(
        machine, made, info.unit, info.minimum, info.granularity, info.thread_throttle_mode, kept
    ).with_curves(curves)
    fresh.save(path)
    return curves


def _refuse_while_enforcing(out: Out) -> None:
    try:
        data = out.client.get("status")
    except Unreachable:
        return
    except NotPermitted as exc:
        click.echo(f"perphctl: {exc}", err=True)
        sys.exit(EXIT_NOT_PERMITTED)
    names = [item["spec"]["name"] for item in data["workloads"] if item["mode"] == "enforce"]
    if names or data["mode"] == "enforce":
        who = f" ({', '.join(names)})" if names else ""
        raise CannotCalibrate(
            f"perphd enforces{who}: calibration would disturb the protected applications; "
            "first run perphctl mode observe"
        )


def _place(config_path: str) -> tuple[str, str]:
    from perphd.config.restore import CONFIG_REMEDY, for_restore

    place = for_restore(config_path, warn, remedy=CONFIG_REMEDY)
    return place.state_dirs[0], place.root


def _numbers(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of numbers such as 0,1", param_hint=option
        ) from None


def _as_json(curve: Curve) -> dict[str, Any]:
    points = [{"level": point.level, "bytes_per_s": point.bytes_per_s} for point in curve.points]
    return {
        "domain": curve.domain,
        "cores": curve.cores,
        "measured_by": curve.measured_by,
        "useful_levels": [point.level for point in curve.useful()],
        "points": points,
    }
