"""perphctl usage-profile: joint resource use of workloads, as observed by this node and others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perphd.commands.base import Out, command
from perphd.commands.files import state_dir
from perphd.control.client import NotPermitted
from perphd.domain.errors import PerphError

if TYPE_CHECKING:
    from perphd.control.table import Part
    from perphd.forecast.usage_profile import UsageProfile

_file = click.option("--file", "path", metavar="FILE", help="Read this profile instead of this node's.")


def add_usage_profile_commands(cli: click.Group) -> None:
    """Add the group to perphctl."""

    @cli.group("usage-profile")
    def usage_profile() -> None:
        """Show and exchange joint use of resources by workloads.

        The forecast worker learns the profile. Profiles of several nodes can be merged in any order and repeatedly.
        """

    command(usage_profile)(show)
    command(usage_profile, "export")(export)
    command(usage_profile, "import")(take)
    command(usage_profile)(merge)


@_file
def show(out: Out, path: str | None) -> None:
    """Show the joint use of pairs of workloads.

    Prints the highest sum at one moment, as a share of both reservations.
    """
    from perphd.forecast.usage_profile import as_record

    profile = _own(out, path)
    out.show(as_record(profile), lambda: _parts(profile))


@click.argument("target", metavar="FILE")
def export(out: Out, target: str) -> None:
    """Export this node's profile to a file."""
    _write(target, profile := _own(out, None))
    out.say({"file": target, "pairs": len(profile.peaks)}, f"written: {target}, {len(profile.peaks)} pairs")


@click.argument("sources", metavar="FILE...", nargs=-1, required=True)
def take(out: Out, sources: Sequence[str]) -> None:
    """Give profiles of other nodes to the forecast worker.

    It merges them within a minute.
    """
    from perphd.control.forecast_files import IMPORTED, read_profile
    from perphd.forecast.usage_profile import as_record

    folder = state_dir(out) / "forecast" / IMPORTED
    written = []
    for source in sources:
        profile = read_profile(Path(source))
        digest = hashlib.sha256(repr(as_record(profile)).encode()).hexdigest()[:16]
        _write(str(folder / f"{digest}.json"), profile)
        written.append(f"{digest}.json")
    out.say({"folder": str(folder), "files": written}, f"written to {folder}: {', '.join(written)}")


@click.argument("target", metavar="TARGET")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True)
def merge(out: Out, target: str, sources: Sequence[str]) -> None:
    """Merge exported profiles into one file."""
    from perphd.control.forecast_files import read_profile
    from perphd.forecast.usage_profile import merged

    _write(target, profile := merged(read_profile(Path(source)) for source in sources))
    out.say({"file": target, "pairs": len(profile.peaks)}, f"written: {target}, {len(profile.peaks)} pairs")


def _own(out: Out, path: str | None) -> UsageProfile:
    from perphd.control.forecast_files import PROFILE, read_profile

    file = Path(path) if path is not None else state_dir(out) / "forecast" / PROFILE
    try:
        there = file.exists()
    except PermissionError as exc:
        raise NotPermitted(f"{file}: this user may not read it; run as root") from exc
    if not there:
        raise PerphError(
            f"{file}: there is no usage profile yet; the forecast worker writes it every half hour"
        )
    return read_profile(file)


def _write(target: str, profile: UsageProfile) -> None:
    from perphd.control.forecast_files import write_profile

    try:
        write_profile(Path(target).absolute(), profile)
    except PermissionError as exc:
        raise NotPermitted(f"{target}: this user may not write it") from exc
    except OSError as exc:
        raise PerphError(f"{target}: cannot be written: {exc.strerror}") from exc


def _parts(profile: UsageProfile) -> list[Part]:
    from perphd.control.table import table, text
    from perphd.forecast.usage_profile import effective_ratio, memory_ratio

    rows: list[tuple[Any, ...]] = [
        (
            first,
            second,
            f"{effective_ratio(profile, first, second):.2f}",
            str(len(profile.peaks[first, second])),
        )
        for first, second in sorted(profile.peaks)
    ]
    memory: list[tuple[Any, ...]] = [
        (name, f"{memory_ratio(profile, name):.2f}") for name in sorted({name for name, _ in profile.memory})
    ]
    found: list[Part] = []
    if rows:
        found.append(
            table("CPU of pairs", ("WORKLOAD", "WORKLOAD", "OF RESERVED", "DAYS"), rows, right=(2, 3))
        )
    if memory:
        found.append(table("Memory", ("WORKLOAD", "OF RESERVED"), memory, right=(1,)))
    return found or [text("nothing has been learned yet")]
