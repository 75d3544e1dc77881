"""``python -m rdt``: show resctrl, watch what groups use, measure what bandwidth levels deliver.

    python -m rdt show
    python -m rdt watch --interval 2 /mygroup
    python -m rdt calibrate --out mba.json

``show`` and ``watch`` only read. ``calibrate`` makes a temporary control group, runs streams in it, and
removes it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from rdt import show
from rdt.calibrate import LIMIT_S, PREFIX, Calibrator, Plan, plan
from rdt.curves import Calibration, Curve
from rdt.errors import Gone, ResctrlError
from rdt.fs import Fs, RealFs
from rdt.groups import Groups
from rdt.info import BandwidthInfo
from rdt.monitor import Monitor
from rdt.mount import DEFAULT_ROOT, find_mount
from rdt.names import GroupRef
from rdt.probe import Prober, ProcessProber, idle_cores, l3_domains, machine_name
from rdt.resctrl import Resctrl


class Program:
    """The commands ``show``, ``watch`` and ``calibrate`` on the files ``fs``, timed by ``sleep`` and ``clock``."""

    def __init__(
        self,
        fs: Fs,
        out: TextIO,
        *,
        prober: Prober | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fs, self._out = fs, out
        self._prober = prober or ProcessProber()
        self._sleep, self._clock = sleep, clock

    def run(self, options: argparse.Namespace) -> None:
        """Run one command. Raises ResctrlError, and LookupError for a group that does not exist."""
        if options.command == "calibrate" and options.show:
            self._out.write(show.calibration(Calibration.load(options.show)))
            return
        mount = find_mount(self._fs)
        root = options.resctrl or (mount.path if mount else DEFAULT_ROOT)
        resctrl = Resctrl.open(self._fs, root)
        {"show": self._show, "watch": self._watch, "calibrate": self._calibrate}[options.command](
            resctrl, options
        )

    def _show(self, resctrl: Resctrl, options: argparse.Namespace) -> None:
        groups = resctrl.list_groups()
        self._out.write(show.machine(resctrl.info, groups))
        for view in show.look(resctrl, _chosen(groups, options.groups)):
            self._out.write(f"\n{show.group(view, resctrl.info)}")

    def _watch(self, resctrl: Resctrl, options: argparse.Namespace) -> None:
        with Monitor(resctrl.access, resctrl.info, clock=self._clock) as monitor:
            rounds = 0
            while True:
                groups = _chosen(resctrl.list_groups(), options.groups, must_exist=rounds == 0)
                for group in set(monitor.groups) - set(groups):
                    monitor.unwatch(group)
                for group in groups:
                    monitor.watch(group)
                found = monitor.read()
                if rounds:
                    now = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
                    self._out.write(f"{now}\n{show.readings({each: found[each] for each in groups})}\n")
                    self._out.flush()
                rounds += 1
                if rounds > options.count > 0:
                    return
                self._sleep(options.interval)

    def _calibrate(self, resctrl: Resctrl, options: argparse.Namespace) -> None:
        shares = l3_domains(self._fs)
        idle = {
            domain: idle_cores(self._fs, share.cores, sleep=self._sleep) for domain, share in shares.items()
        }
        to_do = plan(
            resctrl.info, idle, domains=options.domains, core_counts=options.cores, limit_s=options.limit
        )
        self._out.write(_plan_text(to_do))
        if options.dry_run:
            return
        groups = Groups(resctrl, PREFIX, sleep=self._sleep, clock=self._clock)
        calibrator = Calibrator(groups, self._prober, sleep=self._sleep, clock=self._clock, report=self._say)
        curves = calibrator.run(to_do)
        kept = self._merged(resctrl.info.bandwidths[to_do.resource], curves, options.out)
        kept.save(options.out)
        self._out.write(f"written to {options.out}\n")

    def _merged(self, info: BandwidthInfo, curves: Sequence[Curve], path: Path) -> Calibration:
        """The new curves together with the file's curves of other domains, if the file is valid for this machine."""
        machine = machine_name(self._fs)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        fresh = Calibration(
            machine, made, info.unit, info.minimum, info.granularity, info.thread_throttle_mode, ()
        )
        try:
            before = Calibration.load(path)
        except Gone:
            return fresh.with_curves(curves)
        return fresh.with_curves([*(() if before.misfit(info, machine) else before.curves), *curves])

    def _say(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()


def _plan_text(to_do: Plan) -> str:
    lines = [f"{to_do.resource}: {len(to_do.levels)} levels, at most {to_do.seconds:.0f} s in all"]
    lines += [
        f"  domain {step.domain}: streams on CPUs {', '.join(map(str, step.cpus))}" for step in to_do.steps
    ]
    return "\n".join(lines) + "\n"


def _chosen(
    groups: Sequence[GroupRef], wanted: Sequence[str], must_exist: bool = True
) -> tuple[GroupRef, ...]:
    """The groups at these paths; all groups if no path is given."""
    if not wanted:
        return tuple(groups)
    by_name = {show.name_of(group): group for group in groups}
    paths = [f"/{path.strip('/')}" for path in wanted]
    if must_exist and (missing := [path for path in paths if path not in by_name]):
        raise LookupError(f"no group {missing[0]} (allowed: {', '.join(by_name)})")
    return tuple(by_name[path] for path in paths if path in by_name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rdt", description="Show and measure Linux resctrl.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--root",
        default="/",
        metavar="DIR",
        help="a tree to use in place of / (a simulated or captured machine)",
    )
    common.add_argument(
        "--resctrl",
        metavar="PATH",
        help=f"path of resctrl in that tree (default: from /proc/mounts, else {DEFAULT_ROOT})",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    shows = commands.add_parser("show", parents=[common], help="show what the machine offers, and the groups")
    watches = commands.add_parser("watch", parents=[common], help="print what groups use, repeatedly")
    for each in (shows, watches):
        each.add_argument(
            "groups", nargs="*", metavar="GROUP", help="as shown: /, /name, /name/mon_groups/other"
        )
    watches.add_argument(
        "--interval", type=_positive, default=1.0, metavar="S", help="seconds between readings"
    )
    watches.add_argument(
        "--count", type=int, default=0, metavar="N", help="stop after N readings (default: at Ctrl-C)"
    )

    calibrates = commands.add_parser(
        "calibrate", parents=[common], help="measure what each memory bandwidth level delivers",
        description="Fills memory channels for seconds: on request only, on an idle machine. Streams run on idle "
        "cores, in a control group of their own that is removed at the end.",
    )  # fmt: skip
    calibrates.add_argument(
        "--out", type=Path, default=Path("mba-calibration.json"), metavar="FILE",
        help="file of the curves (default: %(default)s); curves of other domains are kept",
    )  # fmt: skip
    calibrates.add_argument("--domains", type=_numbers, metavar="N,N", help="only these domains")
    calibrates.add_argument(
        "--cores", type=_numbers, metavar="N,N", help="numbers of cores (default: 1, half, all idle)"
    )
    calibrates.add_argument(
        "--limit",
        type=_positive,
        default=LIMIT_S,
        metavar="S",
        help="maximum duration in seconds (default: %(default)s)",
    )
    calibrates.add_argument("--dry-run", action="store_true", help="only print the plan")
    calibrates.add_argument("--show", type=Path, metavar="FILE", help="only show the curves of a file")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of seconds above 0")
    return value


def main(arguments: Sequence[str] | None = None, program: Program | None = None) -> int:
    """Run the program. Returns 0, or 1 with a line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        (program or Program(RealFs(options.root), sys.stdout)).run(options)
    except (ResctrlError, LookupError) as error:
        sys.stderr.write(f"rdt: {error.args[0] if isinstance(error, LookupError) else error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
