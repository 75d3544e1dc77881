"""``perphd sim``: a simulated server as a directory, which any program can read and change."""

from __future__ import annotations

import os
import sys
from typing import Literal

import click

from perphd.commands.number import Number
from perphd.config.file import load
from perphd.domain.errors import PerphError
from perphd.domain.workload import WorkloadSpec

_EXIT_FAILED = 1


@click.group()
def sim() -> None:
    """Simulate a server: kernel files in a directory (by FUSE), and workloads that run in real time."""


_config_option = click.option(
    "--config",
    "config_path",
    help="Simulate the workloads of this configuration; default: one LRA, one batch job.",
)


@sim.command()
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--machine", default="rdt", show_default=True, help="The machine; perphd sim machines lists them."
)
@click.option(
    "--batch-after",
    type=Number(0.0),
    default=30.0,
    show_default=True,
    help="Seconds after which batch starts.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulated noise.")
@click.option(
    "--cgroups",
    type=click.Choice(["v2", "v1"]),
    default="v2",
    show_default=True,
    help="The cgroup hierarchies.",
)
@click.option(
    "--as", "kinds", multiple=True, metavar="NAME=ARCHETYPE", help="Archetype of profiles/ for a workload."
)
@_config_option
def mount(
    directory: str,
    machine: str,
    batch_after: float,
    seed: int,
    cgroups: str,
    kinds: tuple[str, ...],
    config_path: str | None,
) -> None:
    """Mount a simulated server on DIRECTORY (empty) until Ctrl-C, SIGTERM or umount.

    It then contains proc, sys/fs/cgroup, sys/fs/resctrl (machines that have it) and sys/devices/system; a daemon whose
    configuration says root = DIRECTORY in [tuning.host] controls it.
    """
    from perphd.agent.simulated_mount import ServerPlan, machine_names
    from perphd.agent.simulated_mount import mount as mount_server

    if machine not in machine_names():
        raise click.UsageError(f"unknown machine {machine!r}; available: {', '.join(machine_names())}")
    try:
        workloads = _workloads(config_path)
        version: Literal[1, 2] = 1 if cgroups == "v1" else 2
        plan = ServerPlan(machine, workloads, batch_after, seed, version, _kinds(kinds, workloads))
        mount_server(plan, os.path.abspath(directory), lambda: _say(f"mounted on {directory}"))
    except PerphError as exc:
        click.echo(f"perphd: {exc}", err=True)
        raise SystemExit(_EXIT_FAILED) from exc


@sim.command()
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--state-dir",
    default="~/.local/state/perphd-sim",
    show_default=True,
    help="The daemon's state directory.",
)
@_config_option
def config(directory: str, state_dir: str, config_path: str | None) -> None:
    """Print a configuration with which a daemon controls the server mounted on DIRECTORY."""
    from perphd.agent.simulated_mount import daemon_config

    try:
        text = daemon_config(os.path.abspath(directory), _workloads(config_path), state_dir)
    except PerphError as exc:
        click.echo(f"perphd: {exc}", err=True)
        raise SystemExit(_EXIT_FAILED) from exc
    click.echo(text, nl=False)


@sim.command()
def machines() -> None:
    """List the machines that can be mounted."""
    from perphd.agent.simulated_mount import machine_names

    for name in machine_names():
        click.echo(name)


def _workloads(config_path: str | None) -> tuple[WorkloadSpec, ...]:
    from perphd.agent.simulated import DEFAULT_WORKLOADS

    found = load(config_path, runtime=False).workloads if config_path is not None else ()
    return found or DEFAULT_WORKLOADS


def _kinds(given: tuple[str, ...], workloads: tuple[WorkloadSpec, ...]) -> dict[str, str]:
    kinds = dict(text.split("=", 1) for text in given if "=" in text)
    names = [spec.name for spec in workloads]
    if len(kinds) != len(given) or not set(kinds) <= set(names):
        raise click.UsageError(f"--as must be NAME=ARCHETYPE, each NAME once and one of {', '.join(names)}")
    return kinds


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
