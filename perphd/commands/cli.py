"""perphctl: queries and controls the daemon. Other modules of this package add most of the commands."""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from perphd import __version__
from perphd.commands.admission import add_admission_commands
from perphd.commands.base import EXIT_CODES, EXIT_FAILED, Out, command, fail, warn
from perphd.commands.calibrate import add_calibrate_command
from perphd.commands.cluster import add_cluster_command
from perphd.commands.history import add_history_commands
from perphd.commands.init import add_init_command
from perphd.commands.iopath import add_iopath_command
from perphd.commands.jobs import add_job_commands
from perphd.commands.models import add_model_commands
from perphd.commands.node import add_node_command
from perphd.commands.number import Number
from perphd.commands.open_dashboard import add_dashboard_command
from perphd.commands.pause import add_pause_commands
from perphd.commands.report import add_report_command
from perphd.commands.shaper import add_shaper_commands
from perphd.commands.sizing import add_sizing_commands
from perphd.commands.store import add_store_commands
from perphd.commands.suggest import add_suggest_command
from perphd.commands.trace import add_trace_commands
from perphd.commands.trial import add_trial_commands
from perphd.commands.usage_profile import add_usage_profile_commands
from perphd.commands.workloads import add_workload_commands
from perphd.control.client import SOCKET_VARIABLE, NotPermitted, Unreachable
from perphd.domain.errors import ParseError
from perphd.domain.utf8 import print_any

if TYPE_CHECKING:
    from perphd.config.restore import RestorePlace
    from perphd.host.fs import RealFs

DEFAULT_CONFIG = "/etc/perphd/perphd.toml"


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="perphctl")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.option(
    "--socket", metavar="PATH", help=f"The daemon's socket [default: {SOCKET_VARIABLE}, else as configured]."
)
def cli(as_json: bool, socket: str | None) -> None:
    """Query and control perphd, which keeps long-running applications (LRAs) at their performance targets.

    init, doctor, cluster, groups, iopath, calibrate, size, forecast, headroom, predict, history, usage-profile, report,
    memfit estimate, config check, model show FILE, model evaluate, model merge, model contribute, model withdraw, trial
    report --file, restore, query, export and trace export also work while the daemon does not run.
    """
    print_any(sys.stdout)


_host_of = click.option(
    "--config",
    "config_path",
    default=DEFAULT_CONFIG,
    show_default=True,
    help="Configuration file that names the host (tuning.host.root).",
)

add_init_command(cli)
add_workload_commands(cli)
add_pause_commands(cli)
add_job_commands(cli)
add_admission_commands(cli)
add_suggest_command(cli)
add_iopath_command(cli)
add_node_command(cli)
add_cluster_command(cli)
add_store_commands(cli)
add_sizing_commands(cli)
add_shaper_commands(cli)
add_trace_commands(cli)
add_trial_commands(cli)
add_history_commands(cli)
add_usage_profile_commands(cli)
add_report_command(cli)
add_dashboard_command(cli)
add_model_commands(cli)
add_calibrate_command(cli)


@command(cli)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show reasons, memory, cache and disk, and perphd's own cost."
)
def status(out: Out, verbose: bool) -> None:
    """Show the host, LRAs, batch, changes, and problems."""
    data = out.client.get("status")

    def parts() -> Any:
        from perphd.commands.render_status import status_parts
        from perphd.domain.status import AgentStatus
        from perphd.domain.wire import decode

        return status_parts(decode(AgentStatus, data), data["clock"]["monotonic_s"], verbose)

    out.show(data, parts)


@command(cli)
@click.option(
    "--interval",
    "interval_s",
    type=Number(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="Print the status this many times, then exit.")
@click.option("--plain", is_flag=True, help="Print the status repeatedly, as text.")
def top(out: Out, interval_s: float, count: int | None, plain: bool) -> None:
    """Watch the host and its workloads, interactively.

    Shows who uses the host and which cores, every LRA against its target over up to a week, batch, changes, events, and
    the stored past. ? lists the keys. Piped or with --json it prints the status repeatedly.
    """
    from perphd.commands.top import run

    run(out, interval_s, count, plain)


@command(cli)
@click.option(
    "--local", is_flag=True, help="Examine the host with this user's rights instead of asking the daemon."
)
@click.option(
    "--require",
    metavar="NAME,...",
    default="",
    help="Exit with 1 unless all of these can be protected: cpu, memory, cache, bandwidth, counters.",
)
@_host_of
def doctor(out: Out, local: bool, require: str, config_path: str) -> None:
    """Show what this host can measure and enforce.

    Prints a verdict in one line, then the capabilities, with the cost of each absent one and its remedy. Asks a running
    daemon, which may see more than this user. For fleets: perphctl doctor --require cpu,memory
    """
    from perphd.control.verdict import PROTECTIONS, missing

    required = tuple(name.strip() for name in require.split(",") if name.strip())
    if unknown := [name for name in required if name not in PROTECTIONS]:
        raise click.UsageError(
            f"--require: {unknown[0]!r} is not a protection (allowed: {', '.join(PROTECTIONS)})"
        )
    from perphd.control.render import doctor_parts
    from perphd.domain.capability import Capability
    from perphd.domain.topology import Topology
    from perphd.domain.wire import decode, encode

    data: Any = None
    seen_by = "perphctl" if local else "the daemon"
    if not local:
        try:
            data = out.client.get("doctor")
        except Unreachable:
            seen_by = "perphctl (no daemon answers)"
        except NotPermitted:
            seen_by = "perphctl (this user may not ask the daemon)"
    if data is None:
        from perphd.host.capabilities import probe
        from perphd.host.cgroup.hierarchy import discover
        from perphd.host.throttle import capability, look
        from perphd.host.topology import read_topology

        fs, root = _host(config_path)
        if root:
            from perphd.agent.composition import probe_elsewhere
            from perphd.host.event_files import EVENT_FILES, EventFiles

            opener = EventFiles(fs) if fs.exists(EVENT_FILES) else None
            found, seen_by = probe_elsewhere(fs, discover(fs), opener), f"{seen_by}, of the host in {root}"
        else:
            found = probe(fs, discover(fs))
        throttle = look(fs, _without_state_dir(config_path).state_dirs[0])
        items = (*found.items, capability(throttle)) if throttle.levels else found.items
        data = {"capabilities": encode(items), "topology": encode(read_topology(fs))}
    out.show(
        data,
        lambda: doctor_parts(
            decode(tuple[Capability, ...], data["capabilities"], "capabilities"),
            decode(Topology, data["topology"], "topology"),
            seen_by,
            data.get("limitations", ()),
            data.get("by_themselves", ()),
            data.get("bands", ()),
            data.get("undeclared", ()),
        ),
    )
    absent = missing(decode(tuple[Capability, ...], data["capabilities"], "capabilities"), required)
    if absent:
        click.echo(f"perphctl: this host cannot protect {', '.join(absent)}, or only in part", err=True)
        raise SystemExit(EXIT_FAILED)


@command(cli)
@click.argument(
    "wanted", metavar="[observe|enforce]", type=click.Choice(["observe", "enforce"]), required=False
)
@click.option("--workload", metavar="NAME", help="Apply only to this workload.")
def mode(out: Out, wanted: str | None, workload: str | None) -> None:
    """Show or set the mode.

    In observe, perphd decides and writes nothing; in enforce, it writes. A mode that is set here survives a reload. It
    lasts until the daemon restarts, or until the daemon reads a configuration whose mode has changed. A pause
    survives restarts as well.
    """
    if wanted is not None:
        from perphd.commands.render_status import mode_lines

        answer = out.client.send("PUT", "mode", {"mode": wanted, "workload": workload})
        out.say(answer, *mode_lines(answer))
        return
    data = out.client.get("status")
    modes = {item["spec"]["name"]: item["mode"] for item in data["workloads"]}
    if workload is not None and workload not in modes:
        # let the daemon refuse the unknown name
        out.client.get("explain", workload=workload)
    shown = {workload: modes[workload]} if workload is not None else modes
    lines = [f"{name}: {value}" for name, value in shown.items()]
    out.say({"mode": data["mode"], "workloads": shown}, *([data["mode"]] if workload is None else []), *lines)


@command(cli)
@click.argument("workload")
@click.option(
    "--at", metavar="TIME", help="Show decisions up to this time: 14:03, 2025-11-21T14:03, 90s, 5m, 2h (ago)."
)
@click.option("--limit", type=click.IntRange(1, 1000), help="List this many decisions, newest first.")
@click.option("-v", "--verbose", is_flag=True, help="Also show targets, scores and rejected candidates.")
def explain(out: Out, workload: str, at: str | None, limit: int | None, verbose: bool) -> None:
    """Explain a workload's present settings.

    For an LRA: the last decision that changed something (observation, conclusion, action), then the latest. For batch:
    the settings in force, and the decisions that made them.
    """
    from perphd.commands.explain import REMEMBERED, answer_parts, parse_at

    moment = None
    if at is not None:
        try:
            moment = parse_at(at, datetime.datetime.now())
        except ParseError as exc:
            raise click.UsageError(f"--at: {exc}") from exc
    until = None if moment is None else f"{moment:.3f}"
    data = out.client.get("explain", workload=workload, at=until, limit=limit or REMEMBERED)
    out.show(data, lambda: answer_parts(data, workload, limit=limit, at_s=moment, verbose=verbose))


@command(cli)
@click.option(
    "--force",
    is_flag=True,
    help="Also undo values that another program has changed since (only without the daemon).",
)
@click.option(
    "--ignore-lock",
    is_flag=True,
    help="Remove resctrl groups even while another program holds the lock; it may see half a change.",
)
@click.option("--state-dir", metavar="DIR", help="Folder of the journal [default: as configured].")
@click.option(
    "--config",
    "config_path",
    default=DEFAULT_CONFIG,
    show_default=True,
    help="Configuration file that names the state directory.",
)
def restore(out: Out, force: bool, ignore_lock: bool, state_dir: str | None, config_path: str) -> None:
    """Restore every value that perphd has changed.

    A running daemon restores them itself and returns to observe. Without a daemon, the journal is enough. If the
    configuration cannot be read, the command guesses where the journal is and exits with 1.
    """
    from perphd.control.render import restore_parts
    from perphd.control.table import text
    from perphd.domain.wire import decode, encode
    from perphd.isolation.restore_report import RestoreReport

    if state_dir is None and not force:
        try:
            data = out.client.send("POST", f"restore?ignore_lock={int(ignore_lock)}")
        except Unreachable:
            data = None
    else:
        data = None
    by_daemon, guess = data is not None, ""
    if data is None:
        from perphd.config.restore import for_restore
        from perphd.host.fs import RealFs
        from perphd.isolation.restore import restore_each

        place = for_restore(config_path, warn)
        if (said := place.nothing_to_do()) and not state_dir:
            out.say(encode(RestoreReport()), said)
            return
        guess = "" if state_dir else place.guess()
        data = encode(
            restore_each(
                RealFs(place.root), (state_dir,) if state_dir else place.state_dirs, force, ignore_lock
            )
        )
    report = decode(RestoreReport, data)
    observing = [text("All workloads: observe, until the mode is set again.")] if by_daemon else []
    out.show(data, lambda: [*restore_parts(report, guess=guess), *observing])
    if not report.complete or guess:
        sys.exit(EXIT_FAILED)


@command(cli)
def reload(out: Out) -> None:
    """Read the configuration files again.

    The daemon applies workloads and their settings, the mode, on_stop and on_restart; it names other changes, which
    need a restart, in its log.
    """
    answer = out.client.send("POST", "reload")
    out.warn(answer["warnings"])
    out.say(answer, f"read again: {', '.join(answer['sources'])}")


@command(cli)
@click.option(
    "--kind",
    metavar="KIND",
    help="Show only these kinds, separated by commas: decision, outcome, change, problem ...",
)
@click.option("--workload", metavar="NAME", help="Show only events of this workload.")
def events(out: Out, kind: str | None, workload: str | None) -> None:
    """Follow the daemon's events.

    Prints one line per event (with --json one JSON object) until Ctrl-C or until the daemon stops.
    """
    import json

    from perphd.control.render import event_line

    offset = time.time() - time.monotonic()
    for name, data in out.client.events(kind=kind, workload=workload):
        if name == "hello":
            offset = data["clock"]["unix_s"] - data["clock"]["monotonic_s"]
        elif out.as_json:
            click.echo(json.dumps(data, ensure_ascii=False))
        elif name != "tick" or (kind and "tick" in kind):
            click.echo(event_line(name, data, offset))


@cli.group()
def config() -> None:
    """Check configuration files, or show the one in force."""


@command(config)
@click.argument("path", metavar="[FILE]", default=DEFAULT_CONFIG)
def check(out: Out, path: str) -> None:
    """Report every mistake of a configuration.

    Reads it as the daemon would, with the conf.d beside it, and compares it with the host that it configures.
    """
    from perphd.config.file import load, refusals
    from perphd.config.host_check import remarks
    from perphd.config.lines import with_line
    from perphd.domain.errors import ConfigError

    try:
        loaded = load(path, runtime=False)
    except ConfigError as exc:
        first, *others = map(with_line, refusals(path) or (exc,))
        fail(first, out.as_json, *others)
    warnings = remarks(loaded)
    out.warn(warnings)
    count = loaded.count
    out.say(
        {
            "ok": True,
            "sources": list(loaded.sources),
            "workloads": [spec.name for spec in (*loaded.workloads, *loaded.matches)],
            "warnings": warnings,
        },
        f"{', '.join(loaded.sources)}: fine; {count} workload{'' if count == 1 else 's'}, mode {loaded.daemon.mode}",
    )


@command(config)
def show(out: Out) -> None:
    """Show the configuration in force, defaults included."""
    from perphd.config.file import TABLES
    from perphd.control.table import text

    data = out.client.get("config")

    def lines() -> list[str]:
        found = [f"# {source}" for source in data["sources"]]
        for name in (name for name in TABLES if name in data):
            found += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in data[name].items())]
        for name, tuning in data["tuning"].items():
            found += ["", f"[tuning.{name}]", *(f"{key} = {_toml(value)}" for key, value in tuning.items())]
        for kind in ("lra", "batch"):
            for item in data[kind]:
                inner = {key: item.pop(key, None) for key in ("sli", "tuning")}
                found += ["", f"[[{kind}]]", *(f"{key} = {_toml(value)}" for key, value in item.items())]
                for title, table in inner.items():
                    if table:
                        found += [f"[{kind}.{title}]", *(f"{key} = {_toml(v)}" for key, v in table.items())]
        return found

    out.show(data, lambda: [text(*lines())])


@command(cli)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=2000,
    show_default=True,
    help="Maximum number of groups.",
)
@click.option("--all", "everything", is_flag=True, help="Also list groups without processes.")
@_host_of
def groups(out: Out, limit: int, everything: bool, config_path: str) -> None:
    """List the host's control groups and their programs.

    Prints a line for each group that can be pasted into a configuration.

    The host is that of the running daemon, else the host that the configuration names. CPU use is measured over half a
    second.
    """
    from perphd.commands.groups import group_parts, rows_of, usage
    from perphd.host.catalogue import list_cgroups
    from perphd.host.cgroup.hierarchy import discover

    fs, root = _host_of_daemon(out, config_path)
    hierarchies = discover(fs)
    found = [item for item in list_cgroups(fs, hierarchies, limit) if everything or item.populated]
    rows = rows_of(found, {} if root else usage(fs, hierarchies))
    out.show({"cgroups": rows}, lambda: group_parts(rows))


def _host_of_daemon(out: Out, config_path: str) -> tuple[RealFs, str]:
    """The files of the running daemon's host; those of the configured host if no daemon can be asked."""
    from perphd.host.fs import RealFs

    try:
        host = out.client.get("config")["tuning"]["host"]
    except (Unreachable, NotPermitted):
        return _host(config_path)
    if host["kind"] == "simulated":
        out.warn(("the daemon's host is simulated and has no files; these are the groups of this machine",))
        return _host(config_path)
    return RealFs(host["root"]), host["root"]


def _host(config_path: str) -> tuple[RealFs, str]:
    """The files and the root of the configured host; this machine's if none is configured."""
    from perphd.host.fs import RealFs

    root = _without_state_dir(config_path).root if os.path.exists(config_path) else ""
    return RealFs(root), root


def _without_state_dir(config_path: str) -> RestorePlace:
    """The places that the configuration names, for a command without ``--state-dir``."""
    from perphd.config.restore import CONFIG_REMEDY, for_restore

    return for_restore(config_path, warn, remedy=CONFIG_REMEDY)


def _toml(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """The command perphctl."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # for matrices of 50 rows, threads cost more than they save
    if "_PERPHCTL_COMPLETE" in os.environ:
        from perphd.commands.completion import complete_names

        complete_names(cli)
    cli(prog_name="perphctl")
