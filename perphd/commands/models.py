"""perphctl model: learned models of LRAs: inspect, export, import, reset; exchange with other hosts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from perphd.commands.base import Out, command
from perphd.commands.contributions import add_contribution_commands
from perphd.commands.model_files import add_model_file_commands, profile_parts, read_profile
from perphd.domain.errors import PerphError


def add_model_commands(cli: click.Group) -> None:
    """Add the group to perphctl."""
    cli.add_command(model)
    add_model_file_commands(model)
    add_contribution_commands(model)


@click.group()
def model() -> None:
    """Inspect and manage what perphd has learned about LRAs."""


@command(model, "list")
def list_models(out: Out) -> None:
    """List the models, one for each LRA."""
    from perphd.commands.render_model import list_parts
    from perphd.domain.belief import ModelSummary
    from perphd.domain.wire import decode

    data = out.client.get("models")
    out.show(data, lambda: list_parts(decode(tuple[ModelSummary, ...], data["models"], "models")))


@command(model)
@click.argument("name", metavar="NAME|FILE")
@click.option("--all", "everything", is_flag=True, help="Show every allocation that could be enforced.")
@click.option(
    "--curves", is_flag=True, help="Show curves instead of tables: the effect of one variable at a time."
)
@click.option("--png", metavar="FILE", help="Also draw the curves into this PNG file.")
def show(out: Out, name: str, everything: bool, curves: bool, png: str | None) -> None:
    """Show what an LRA's model predicts.

    Prints its undisturbed performance, and its predictions of work, delay and batch under the CPU allocations, each
    with its bounds and the number of samples behind it. For a FILE that "perphd profile" saved: its origin, and the
    effect of each knob on work (partial dependence).
    """
    from perphd.commands.curves import of_profile, of_view, parts, save_png
    from perphd.commands.render_model import model_parts
    from perphd.domain.belief import ModelView
    from perphd.domain.wire import decode

    if "/" in name or name.endswith(".json"):  # no LRA can have such a name
        profile = read_profile(name)
        if png is not None:
            save_png(of_profile(profile), png, profile.origin.app)
        out.show(
            asdict(profile.origin) | {"metrics": asdict(profile.metrics)}, lambda: profile_parts(profile)
        )
        return
    data = out.client.get(f"models/{_quoted(name)}")
    view = decode(ModelView, data)
    if png is not None:
        save_png(of_view(view), png, name)
    shown = (lambda: parts(of_view(view))) if curves else (lambda: model_parts(view, everything=everything))
    out.show(data, shown)


@command(model)
@click.argument("name")
def origin(out: Out, name: str) -> None:
    """Show where a workload's model and its forecasts came from.

    Lists the hosts they started from ([federated]) with their weights, the hosts that were left out and why, and how
    well that start has worked.
    """
    from perphd.commands.render_model import origin_parts
    from perphd.domain.belief import ModelOrigin
    from perphd.domain.wire import decode

    data = out.client.get(f"models/{_quoted(name)}/origin")
    out.show(data, lambda: origin_parts(decode(ModelOrigin, data)))


@command(model)
@click.argument("name")
@click.argument("file")
def export(out: Out, name: str, file: str) -> None:
    """Write an LRA's model to FILE.

    An existing FILE is replaced. "-" is standard output.
    """
    data = out.client.get(f"models/{_quoted(name)}/export")
    text = json.dumps(data) + "\n"
    if file == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(file, "w", encoding="utf-8") as target:
            target.write(text)
    except OSError as exc:
        raise PerphError(f"{file}: cannot be written: {exc.strerror}") from exc
    samples = data["body"]["state"]["samples"]
    out.say(
        {"lra": name, "file": file, "samples": samples},
        f"{file}: holds the model of {name}, with {samples} samples",
    )


@command(model, "import")
@click.argument("name")
@click.argument("file")
@click.option("--rename", is_flag=True, help="Accept the model of an LRA with another name.")
def import_model(out: Out, name: str, file: str, rename: bool) -> None:
    """Replace an LRA's model by the one in FILE.

    "-" is standard input. A file that is damaged, of another version or for another kind of SLI is refused, and nothing
    changes.
    """
    data = _read(file)
    answer = out.client.send("PUT", f"models/{_quoted(name)}{'?rename=1' if rename else ''}", data)
    out.warn(answer["warnings"])
    out.say(answer, f"{name}: model imported from {file}")


@command(model)
@click.argument("name")
def reset(out: Out, name: str) -> None:
    """Forget everything that was learned about an LRA.

    Learning starts again with the next sample.
    """
    answer = out.client.send("DELETE", f"models/{_quoted(name)}")
    out.say(answer, f"{name}: the model was reset and learns from the beginning")


def _read(file: str) -> dict[str, Any]:
    try:
        with click.open_file(file, "r", encoding="utf-8") as source:
            data = json.loads(source.read())
    except OSError as exc:
        raise PerphError(f"{file}: cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise PerphError(f"{file}: is not a model: not JSON: {str(exc)[:200]}") from exc
    if not isinstance(data, dict):
        raise PerphError(f"{file}: is not a model: not a JSON object")
    return data


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
