"""perphctl dashboard: the dashboard in the browser, served from this process."""

from __future__ import annotations

import click

from perphd.commands.base import Out, command
from perphd.commands.cluster import VARIABLE
from perphd.domain.errors import PerphError


def add_dashboard_command(cli: click.Group) -> None:
    """Add the command to perphctl."""
    command(cli)(dashboard)


@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port on loopback [default: a free one]."
)
@click.option("--admin", is_flag=True, help="Allow the page to pause, resume and set the mode.")
@click.option(
    "--url-file",
    metavar="FILE",
    help="Keep an unused link in this file, instead of printing one.",
)
@click.option("--extender", metavar="URL", envvar=VARIABLE, default="",
              help=f"Address of perphd-extender, for the page of the fleet [environment: {VARIABLE}].")  # fmt: skip
def dashboard(out: Out, port: int, admin: bool, url_file: str | None, extender: str) -> None:
    """Serve the dashboard for a browser on this host.

    Prints a link that opens it once; the browser then has a session. Runs until Ctrl-C. From another machine, forward
    the port: ssh -L 9477:127.0.0.1:9477 HOST perphctl dashboard --port 9477

    The page is read-only unless --admin is given; the daemon requires the same rights as for every other command.
    """
    import asyncio

    from perphd.commands.dashboard.serving import serve

    if extender and not extender.startswith(("http://", "https://")):
        raise PerphError(f"--extender {extender}: must begin with http:// or https://")
    try:
        asyncio.run(serve(out.client, port, admin, url_file, click.echo, extender))
    except OSError as exc:
        raise PerphError(f"127.0.0.1:{port}: cannot listen: {exc.strerror or exc}") from exc
