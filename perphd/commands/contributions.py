"""perphctl model contribute and model withdraw: the exchange of learned models, as files in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from perphd.commands.base import Out, command
from perphd.commands.files import state_dir
from perphd.control.client import NotPermitted
from perphd.domain.errors import PerphError

_folder = click.argument("folder", metavar="FOLDER")


def add_contribution_commands(model: click.Group) -> None:
    """Add the commands to ``perphctl model``."""
    command(model)(contribute)
    command(model)(withdraw)


@_folder
def contribute(out: Out, folder: str) -> None:
    """Export what models have learned, for other hosts.

    Writes one file into FOLDER, named after this host. It contains estimates at fixed points with the evidence for
    each, but no samples. Reads the saved models and forecast scores. With "contribute" in [federated], the daemon does
    the same whenever it saves them.
    """
    import time

    from perphd.agent.contribution_folder import ContributionFolder
    from perphd.agent.own_document import document_of
    from perphd.predictor.persist import ModelFileError, from_text

    models = state_dir(out) / "models"
    files, problems = [], []
    try:
        for path in sorted(models.glob("*.json")):
            try:
                files.append(from_text(path.read_bytes()))
            except ModelFileError as exc:
                problems.append(f"{path}: left out: {exc}")
    except PermissionError as exc:
        raise NotPermitted(f"{models}: this user may not read it; run as root") from exc
    except OSError as exc:
        raise PerphError(f"{models}: cannot be read: {exc.strerror}") from exc
    target = ContributionFolder(folder)
    document = document_of(files, state_dir(out) / "forecast", target, time.time())
    if not document.statistics:
        raise PerphError(
            f"{models}: nothing to contribute yet: no model has enough samples taken while batch ran, and no forecast "
            "has enough scores"
        )
    path = target.write(document)
    about = sorted({each.topic.application for each in document.statistics})
    out.warn(problems)
    out.say({"file": str(path), "lras": about}, f"written: {path}, about {', '.join(about)}")


@_folder
@click.argument("host")
@click.option("--undo", is_flag=True, help="Use the host's contribution again.")
def withdraw(out: Out, folder: str, host: str, undo: bool) -> None:
    """Stop using the contribution of HOST.

    Writes HOST.withdrawn into FOLDER. Models that start later ignore HOST entirely. A model that already started from
    it keeps learning; "perphctl model reset" starts it again.
    """
    from perphd.agent.contribution_folder import ContributionFolder

    target = ContributionFolder(folder)
    if not Path(folder).is_dir():
        raise PerphError(f"{folder}: there is no such folder; give the shared folder of contributions")
    if undo:
        said = f"{host} counts again" if target.reinstate(host) else f"{host} was not withdrawn"
        out.say({"host": host, "withdrawn": False}, said)
        return
    path = target.withdraw(host)
    if not target.has(host):
        out.warn([f"{folder} has no file of {host} now: check the name"])
    out.say(
        {"host": host, "withdrawn": True, "file": str(path)},
        f"{host}: its contribution is no longer used: {path}",
    )
