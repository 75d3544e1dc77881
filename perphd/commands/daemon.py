"""The daemon's own command, ``perphd``: run, demo, profile, restore, ship, config check."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from perphd import __version__
from perphd.commands.profile import profile
from perphd.commands.sim import sim
from perphd.config.file import DEFAULT_PATH, Config, load, refusals
from perphd.config.lines import with_line
from perphd.config.restore import for_restore
from perphd.control.journal_log import start_logging
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.utf8 import print_any

EXIT_FAILED = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd")
def main() -> None:
    """Keep long-running applications at their target with just enough resources.

    Exit codes: 0 done, 1 refused or failed (the reason is on standard error), 2 wrong usage.
    """
    print_any(sys.stdout)


_ignore_lock_option = click.option(
    "--ignore-lock",
    is_flag=True,
    help="Remove resctrl groups even while another program holds the lock; it may see half a change.",
)
_config_option = click.option(
    "--config", "config_path", default=DEFAULT_PATH, show_default=True, help="Configuration file."
)


@main.command()
@_config_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log level; overrides the configuration.",
)
def run(config_path: str, log_level: str | None) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C."""
    try:
        config = _loaded(config_path)
        start_logging(log_level or config.daemon.log_level)
        from perphd.agent.service import Service
        from perphd.agent.upkeep import protect_self
        from perphd.host.tls import no_authorities

        with no_authorities():
            from perphd.control.servers import servers_of

        protect_self()
        service = Service(Path(config_path), config, lambda agent, reload: servers_of(agent, config, reload))
        asyncio.run(service.run())
    except PerphError as exc:
        _refuse(exc)


@main.command()
@click.option(
    "--seconds",
    type=click.IntRange(60, 3600),
    default=150,
    show_default=True,
    help="Virtual duration of the demonstration.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the simulated noise.")
def demo(seconds: int, seed: int) -> None:
    """Demonstrate the control loop on a simulated host, without root and without touching this machine."""
    from perphd.agent.demo import run_demo

    raise SystemExit(run_demo(seconds=seconds, seed=seed))


@main.command()
@_config_option
@click.option("--state-dir", help="Folder of the journal; overrides the configuration.")
@click.option("--force", is_flag=True, help="Also undo values that another program has changed since.")
@_ignore_lock_option
def restore(config_path: str, state_dir: str | None, force: bool, ignore_lock: bool) -> None:
    """Restore every value that a daemon changed and did not restore. Works without the daemon.

    Searches the configured state directory, and those that daemons with this configuration file have used since the
    host was booted. Does nothing for a simulated host, which ends with its daemon. If the configuration cannot be
    read, the command guesses where to look and exits with 1.
    """
    from perphd.host.fs import RealFs
    from perphd.isolation.restore import restore_each

    try:
        place = for_restore(config_path, lambda text: click.echo(f"perphd: warning: {text}", err=True))
        if (said := place.nothing_to_do()) and not state_dir:
            click.echo(said)
            return
        state_dirs = (state_dir,) if state_dir else place.state_dirs
        report = restore_each(RealFs(place.root), state_dirs, force, ignore_lock)
    except PerphError as exc:
        _refuse(exc)
    if guess := "" if state_dir else place.guess():
        click.echo(guess)
    click.echo(str(report))
    if report.failed or guess:
        raise SystemExit(EXIT_FAILED)


@main.command()
@click.option(
    "--to",
    metavar="PLACE",
    envvar="PERPHD_SHIP_TO",
    required=True,
    help="A folder or s3://BUCKET/PREFIX [default: PERPHD_SHIP_TO].",
)
@click.option("--store", metavar="FILE", help="The store's file [default: as configured].")
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(300, 86400),
    default=3600,
    show_default=True,
    help="Seconds of telemetry in a dataset.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    default="parquet",
    show_default=True,
)
@click.option("--host", metavar="NAME", help="Names this host in PLACE [default: its host name].")
@_config_option
def ship(to: str, store: str | None, every_s: int, form: str, host: str | None, config_path: str) -> None:
    """Commit the store's data since the last shipment, and the models, to PLACE/HOST.

    Writes one dataset for each hour (see --every), oldest first, and skips hours that are already committed, so the
    command can be repeated at any time. perphd-ship.timer runs it.
    """
    import socket
    import time

    from perphd.commands.shipping import ship as send

    try:
        path = store or load(config_path, runtime=False).store_path
        for line in send(to, path, host or socket.gethostname(), float(every_s), form, time.time()):
            click.echo(line)
    except PermissionError as exc:
        raise SystemExit(f"perphd: {exc.filename}: this user may not read the store") from exc
    except PerphError as exc:
        _refuse(exc)


@main.group()
def config() -> None:
    """Check the configuration."""


@config.command()
@click.argument("path", default=DEFAULT_PATH)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, as perphctl config check does.")
def check(path: str, as_json: bool) -> None:
    """Read a configuration as the daemon would, and report its mistakes."""
    if as_json:
        from perphd.commands.cli import main as perphctl

        sys.argv[1:] = ["--json", "config", "check", "--", path]
        perphctl()
    from perphd.config.host_check import remarks

    try:
        loaded = load(path)
        for warning in remarks(loaded):
            click.echo(f"warning: {warning}", err=True)
    except ConfigError as exc:
        _show_mistakes(path, exc)
        raise SystemExit(EXIT_FAILED) from exc
    except PerphError as exc:
        _refuse(exc)
    noun = "workload" if loaded.count == 1 else "workloads"
    click.echo(f"{path}: fine; {loaded.count} {noun}, mode {loaded.daemon.mode}")


main.add_command(sim)
main.add_command(profile)


def _loaded(path: str) -> Config:
    """The configuration. Exits with all its mistakes and their lines if it has any."""
    try:
        return load(path)
    except ConfigError as exc:
        _show_mistakes(path, exc)
        click.echo(
            f"perphd: after a correction, check it with: perphd config check {shlex.quote(path)}", err=True
        )
        raise SystemExit(EXIT_FAILED) from exc


def _show_mistakes(path: str, error: ConfigError) -> None:
    for refused in refusals(path) or (error,):
        click.echo(f"perphd: {with_line(refused)}", err=True)


def _refuse(error: PerphError) -> NoReturn:
    click.echo(f"perphd: {error}", err=True)
    raise SystemExit(EXIT_FAILED)
