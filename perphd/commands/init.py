"""perphctl init: examine the host, propose and write a configuration, and show the next commands."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perphd.commands.base import Out, command, warn
from perphd.domain.errors import ConfigError

if TYPE_CHECKING:
    from perphd.agent.proposal import Proposal, Proposed
    from perphd.commands.init_check import Measured
    from perphd.config.file import Config
    from perphd.control.table import Part
    from perphd.domain.host_facts import HostFacts

_MAIN = "/etc/perphd/perphd.toml"
_NEXT_TO_MAIN = "conf.d/50-init.toml"
_MODE = 0o640
_PASSWORD_MODE = 0o600


def add_init_command(cli: click.Group) -> None:
    """Add the command to perphctl."""

    @command(cli, "init")
    @click.option("--yes", is_flag=True, help="Write without asking.")
    @click.option("--dry-run", is_flag=True, help="Only show what would be written.")
    @click.option(
        "--config",
        "main",
        default=_MAIN,
        show_default=True,
        help="The main file; a drop-in is written beside it.",
    )
    @click.option("--force", is_flag=True, help="Replace a file that an earlier init wrote.")
    def init(out: Out, yes: bool, dry_run: bool, main: str, force: bool) -> None:
        """Examine this host and propose a first configuration.

        Recognises databases, caches, brokers, web servers and Java services by their programs and ports, batch by
        slices, timers, cron and programs. Checks what can be measured of each, shows the configuration and the
        statements for accounts, and writes after you agree. With --json it does not ask: add --yes to write.
        """
        run(out, Path(main), yes=yes, dry_run=dry_run, force=force)


def run(out: Out, main: Path, *, yes: bool, dry_run: bool, force: bool) -> None:
    """Run the command ``init``.

    Raises:
        ConfigError: the present configuration is invalid, or the file cannot be written.
    """
    import asyncio  # slow to import, and rarely needed

    from perphd.agent.proposal import propose

    target = main if not main.exists() else main.parent / _NEXT_TO_MAIN
    before = _configured(main, target if force else None)
    if target.exists() and not force and not dry_run:
        raise ConfigError(str(target), "", "exists already", "--force, which replaces it")
    if not out.as_json:
        click.echo("Examining this host for two seconds ...", err=True)
    facts, hierarchies = look(before)
    proposal = propose(facts, (*before.workloads, *before.matches) if before is not None else ())
    sure = [item for item in proposal.workloads if item.sure]
    measured = asyncio.run(_measure(sure, hierarchies))
    text, passwords = _file(proposal, measured)
    _check(text, main, target)
    steps = _next(main, before)
    data = _json(proposal, measured, text, target, steps)
    if out.as_json:
        data["written"] = _write(target, text, passwords) if yes and sure and not dry_run else []
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    out.show(data, lambda: _parts(proposal, measured, passwords))
    click.echo(f"\n{target} would contain:\n")
    click.echo("".join(f"    {line}\n" if line else "\n" for line in text.splitlines()), nl=False)
    if not sure:
        click.echo(
            "\nNothing was recognised with certainty, so nothing is written. Start from the lines above."
        )
        if before is None or not (before.workloads or before.matches):
            click.echo(
                f"No workload is configured yet. Start what is to be managed and run perphctl init again, or name "
                f"the control groups yourself in {target}: man perphd.conf has an example."
            )
            raise click.exceptions.Exit(1)
        return
    if dry_run:
        click.echo("\nNothing was written (--dry-run).")
        return
    if not yes and not _agreed(target, passwords):
        click.echo("Nothing was written.")
        return
    for path in _write(target, text, passwords):
        click.echo(f"written: {path}")
    _load(main)
    click.echo("The configuration is fine. Next:\n")
    for step in steps:
        click.echo(f"    {step}")


def look(before: Config | None) -> tuple[HostFacts, Any]:
    """Facts about this machine, and its control group hierarchies."""
    from perphd.host.cgroup.hierarchy import discover, own_cgroups
    from perphd.host.fs import RealFs
    from perphd.host.survey import survey
    from perphd.host.tcp_latency import probe_refusal

    root = before.host.root if before is not None else ""
    if root:
        raise ConfigError("configuration", "tuning.host.root", "init examines this machine only", 'root = ""')
    fs = RealFs()
    hierarchies = discover(fs)
    own = frozenset(path for _, path in own_cgroups(fs) if path != "/")
    return survey(fs, hierarchies, own, not probe_refusal()), hierarchies


def _configured(main: Path, without: Path | None) -> Config | None:
    """The present configuration; None if there is none. ``without``: a file that is about to be replaced."""
    from perphd.config.file import load

    if not main.exists():
        return None
    config = load(main)
    if without is None or not without.exists():
        return config
    from dataclasses import replace

    from perphd.config.file import parse

    mine = parse(without.read_text(), str(without))
    names = {spec.name for spec in (*mine.workloads, *mine.matches)}
    return replace(
        config,
        workloads=tuple(spec for spec in config.workloads if spec.name not in names),
        matches=tuple(spec for spec in config.matches if spec.name not in names),
    )


async def _measure(sure: Sequence[Proposed], hierarchies: Any) -> tuple[Measured, ...]:
    from perphd.commands.init_check import measure

    return await measure(sure, hierarchies)


def _file(proposal: Proposal, measured: Sequence[Measured]) -> tuple[str, dict[str, str]]:
    """The file's text, and passwords by file for accounts that do not exist yet."""
    from perphd.agent.proposal import config_text
    from perphd.commands.init_check import answers

    silent = {item.name for item in measured if not answers(item)}
    passwords = {}
    for item in proposal.workloads:
        path = item.spec.sli.get("password_file") if item.spec.sli is not None else ""
        if item.spec.name in silent and path and not Path(path).exists():
            passwords[path] = secrets.token_hex(16)
    return config_text(proposal, silent), passwords


def _check(text: str, main: Path, target: Path) -> None:
    """Check the proposal as the daemon would; a refusal is a bug of init, found before anything is written."""
    from perphd.config.file import parse

    parse(text, str(target))


def _load(main: Path) -> None:
    from perphd.config.file import load
    from perphd.config.host_check import check_against_host
    from perphd.host.cgroup.hierarchy import discover
    from perphd.host.fs import RealFs

    loaded, fs = load(main), RealFs()
    for warning in (*loaded.warnings, *check_against_host(loaded, fs, discover(fs))):
        warn(warning)


def _agreed(target: Path, passwords: dict[str, str]) -> bool:
    if not sys.stdin.isatty():
        click.echo("\nNo terminal to ask on: add --yes to write the file, or --dry-run.", err=True)
        return False
    more = f" and {', '.join(passwords)}" if passwords else ""
    return click.confirm(f"\nWrite {target}{more}?", default=True)


def _write(target: Path, text: str, passwords: dict[str, str]) -> list[str]:
    from perphd.host.state_files import replace_text

    for path, password in passwords.items():
        replace_text(Path(path), f"{password}\n", _PASSWORD_MODE)
    replace_text(target, text, _MODE)
    return [*passwords, str(target)]


def _next(main: Path, before: Config | None) -> list[str]:
    """The next two commands. A running daemon reloads the file; otherwise it is started."""
    if str(main) != _MAIN:
        return [f"perphd run --config {main}", "perphctl status"]
    runs = before is not None and Path(before.daemon.socket).exists()
    return ["sudo perphctl reload" if runs else "sudo systemctl restart perphd", "sudo perphctl status"]


def _parts(proposal: Proposal, measured: Sequence[Measured], passwords: dict[str, str]) -> list[Part]:
    from perphd.control.numbers import number
    from perphd.control.table import table, text
    from perphd.domain.units import format_bytes

    told = {item.name: item for item in measured}
    rows = [
        (
            item.spec.name,
            item.spec.kind.value if item.sure else f"{item.spec.kind}?",
            number(item.cpu_cores),
            format_bytes(float(item.memory_bytes)),
            item.why,
        )
        for item in proposal.workloads
    ]
    parts: list[Part] = []
    if rows:
        parts.append(table("", ("NAME", "KIND", "CORES", "MEMORY", "WHY"), rows, right=(2, 3)))
        parts.append(text("lra: is protected; batch: gives way; ?: not certain, written as a comment"))
    else:
        parts.append(text("No server and no batch was recognised."))
    lines = [_measuring(item, told.get(item.spec.name)) for item in proposal.workloads if _is_lra(item)]
    if lines:
        parts.append(text(*lines))
    parts += [text(*lines) for lines in _accounts(proposal, told, passwords)]
    if proposal.left_out:
        parts.append(text("Not proposed:", *(f"  {item.what}: {item.why}" for item in proposal.left_out)))
    return parts


def _is_lra(item: Proposed) -> bool:
    return item.sure and item.spec.kind.value == "lra"


def _measuring(item: Proposed, measured: Measured | None) -> str:
    from perphd.commands.init_check import answers
    from perphd.control.numbers import number

    name = item.spec.name
    if item.spec.sli is None:
        return (
            f"{name}: judged by CPU time and stalls (docs/how-to/indicators.md: how to give it an indicator)"
        )
    if measured is None:
        return f"{name}: rate and latency are measured from its TCP connections"
    if answers(measured):
        return f"{name}: {measured.source} answers: {number(measured.rate_per_s, '/s')}"
    return f"{name}: {measured.source} does not answer yet: {getattr(measured.rate_per_s, 'reason', '')}"


def _accounts(proposal: Proposal, told: dict[str, Measured], passwords: dict[str, str]) -> list[list[str]]:
    """The SQL statements that create the accounts of sources that do not answer yet."""
    from perphd.commands.init_check import answers

    blocks = []
    for item in proposal.workloads:
        measured = told.get(item.spec.name)
        if measured is None or answers(measured) or not item.account or item.spec.sli is None:
            continue
        path = item.spec.sli.get("password_file")
        password = passwords.get(path, f"the password in {path}")
        blocks.append(
            [
                f"An account for {item.spec.name} that needs no privileges:",
                f"    {item.account.format(password=password)}",
            ]
        )
    return blocks


def _json(
    proposal: Proposal, measured: Sequence[Measured], text: str, target: Path, steps: Sequence[str]
) -> dict[str, Any]:
    from perphd.config.workloads import to_table
    from perphd.domain.wire import encode

    return {
        "schema": 1,
        "workloads": [
            {
                "kind": item.spec.kind.value,
                "sure": item.sure,
                "why": item.why,
                "cgroup": item.cgroup,
                "cpu_cores": round(item.cpu_cores, 3),
                "memory_bytes": item.memory_bytes,
                "table": to_table(item.spec),
            }
            for item in proposal.workloads
        ],
        "left_out": encode(proposal.left_out),
        "measured": encode(tuple(measured)),
        "path": str(target),
        "config": text,
        "next": list(steps),
        "written": [],
    }
