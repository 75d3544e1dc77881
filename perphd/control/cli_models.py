"""perphctl model: what perphd has learned about LRAs; to look at, to carry to another host, to begin anew."""

from __future__ import annotations

import json
from typing import Any

import click

from perphd.control.cli_base import Out, command
from perphd.domain.errors import PerphError


def add_model_commands(cli: click.Group) -> None:
    """Add the group to perphctl."""
    cli.add_command(model)


@click.group()
def model() -> None:
    """What perphd has learned about LRAs."""


@command(model, "list")
def list_models(out: Out) -> None:
    """List the models, one of each LRA."""
    from perphd.control.render_model import list_parts
    from perphd.control.wire import decode
    from perphd.domain.belief import ModelSummary

    data = out.client.get("models")
    out.show(data, lambda: list_parts(decode(tuple[ModelSummary, ...], data["models"], "models")))


@command(model)
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Every allocation that could be enforced.")
def show(out: Out, name: str, everything: bool) -> None:
    """Draw what an LRA's model believes.

    Its undisturbed performance, and what it expects of work, delay and batch under the CPU allocations: each with
    its bounds, and with how many samples speak for it.
    """
    from perphd.control.render_model import model_parts
    from perphd.control.wire import decode
    from perphd.domain.belief import ModelView

    data = out.client.get(f"models/{_quoted(name)}")
    out.show(data, lambda: model_parts(decode(ModelView, data), everything=everything))


@command(model)
@click.argument("name")
@click.argument("file")
def export(out: Out, name: str, file: str) -> None:
    """Write an LRA's model to FILE.

    It is replaced if it exists. "-" is standard output.
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
    out.say({"lra": name, "file": file, "samples": samples}, f"{file}: model of {name}, of {samples} samples")


@command(model, "import")
@click.argument("name")
@click.argument("file")
@click.option("--rename", is_flag=True, help="Also if it is the model of an LRA of another name.")
def import_model(out: Out, name: str, file: str, rename: bool) -> None:
    """Replace an LRA's model by the one in FILE.

    "-" is standard input. A file that is damaged, of another version or of another kind of SLI is refused, and
    nothing changes.
    """
    data = _read(file)
    answer = out.client.send("PUT", f"models/{_quoted(name)}{'?rename=1' if rename else ''}", data)
    out.warn(answer["warnings"])
    out.say(answer, f"{name}: model imported from {file}")


@command(model)
@click.argument("name")
def reset(out: Out, name: str) -> None:
    """Forget what was learned about an LRA.

    It is learned anew, from the next sample on.
    """
    answer = out.client.send("DELETE", f"models/{_quoted(name)}")
    out.say(answer, f"{name}: is learned anew")


def _read(file: str) -> dict[str, Any]:
    try:
        with click.open_file(file, "r", encoding="utf-8") as source:
            data = json.loads(source.read())
    except OSError as exc:
        raise PerphError(f"{file}: cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise PerphError(f"{file}: is no model: not JSON: {str(exc)[:200]}") from exc
    if not isinstance(data, dict):
        raise PerphError(f"{file}: is no model: not a JSON object")
    return data


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
