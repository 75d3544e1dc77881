"""Shared parts of all perphctl commands: options, output, and errors as sentences with exit codes."""

from __future__ import annotations

import codecs
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click

from perphd.commands.published import published
from perphd.control.client import SOCKET_VARIABLE, Client, NotPermitted, Refused, Unreachable, socket_path
from perphd.control.table import Part, plain, print_parts
from perphd.domain.errors import ConfigError, Denied, PerphError

EXIT_FAILED = 1
EXIT_UNREACHABLE = 3
EXIT_NOT_PERMITTED = 4
EXIT_NOT_FOUND = 5
EXIT_NOT_NOW = 75
EXIT_INTERRUPTED = 130
EXIT_CODES = """\b
Exit codes:
  0  done
  1  refused or failed (the reason is on standard error)
  2  wrong usage of the command line
  3  no daemon answers on the socket
  4  not permitted
  5  there is no such workload or job, or no trial yet
 75  admit: not now; try again later
"""


_JSON = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
_SOCKET = click.option(
    "--socket", metavar="PATH", help=f"The daemon's socket [default: {SOCKET_VARIABLE}, else as configured]."
)


class Out:
    """Prints the output of a command: as JSON, as plain text, or formatted for a terminal."""

    def __init__(self, socket: str | None, as_json: bool) -> None:
        self._socket, self.as_json = socket, as_json

    @functools.cached_property
    def client(self) -> Client:
        """The client of the daemon."""
        return Client(socket_path(self._socket))

    def show(self, data: Any, parts: Callable[[], Iterable[Part]]) -> None:
        """Print ``data`` as JSON if requested, else ``parts``."""
        if self.as_json:
            click.echo(json.dumps(published(data), indent=2, ensure_ascii=False))
        elif sys.stdout.isatty():
            from rich.console import Console

            print_parts(parts(), Console(highlight=False))
        else:
            click.echo(plain(parts()), nl=False)

    def say(self, data: Any, *sentences: str) -> None:
        """Print ``data`` as JSON if requested, else the sentences."""
        if self.as_json:
            click.echo(json.dumps(published(data), indent=2, ensure_ascii=False))
        else:
            for sentence in sentences:
                click.echo(sentence)

    def warn(self, sentences: Iterable[str]) -> None:
        """Print sentences that are not part of the answer to standard error (in JSON they are part of the answer)."""
        if not self.as_json:
            for sentence in sentences:
                warn(sentence)


def warn(sentence: str) -> None:
    """Print a warning to standard error."""
    click.echo(f"perphctl: warning: {sentence}", err=True)


def command(group: click.Group, name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    """Like ``group.command``, with ``--json`` and ``--socket`` before or after the command's own arguments.

    The function's first argument is an ``Out``. Every PerphError becomes one sentence and an exit code.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        def run(context: click.Context, as_json: bool, socket: str | None, **values: Any) -> None:
            above = context.find_root().params
            out = Out(socket or above.get("socket"), as_json or bool(above.get("as_json")))
            _encode_any_text(out.as_json)
            try:
                function(out, **values)
                sys.stdout.flush()
            except PerphError as exc:
                fail(exc, out.as_json)
            except BrokenPipeError:
                # The reader (head, less) has closed the pipe: print nothing, not even at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                context.exit(EXIT_FAILED)
            except KeyboardInterrupt:
                context.exit(EXIT_INTERRUPTED)

        functools.update_wrapper(run, function)
        wrapped: Callable[..., None] = click.pass_context(run)
        for option in (_JSON, _SOCKET):
            wrapped = option(wrapped)
        return group.command(name or function.__name__)(wrapped)

    return decorate


def _encode_any_text(as_json: bool) -> None:
    """Where the locale is not UTF-8, print ? for characters that it lacks. JSON is UTF-8 in every locale (RFC 8259)."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper) or codecs.lookup(stdout.encoding).name == "utf-8":
        return
    if as_json:
        stdout.reconfigure(encoding="utf-8")
    else:
        stdout.reconfigure(errors="replace")


def fail(error: PerphError, as_json: bool, *more: PerphError) -> NoReturn:
    """Exit with a sentence for every error on standard error, and with JSON on standard output if requested.

    ``more``: further mistakes in the same input. JSON then lists all of them under ``errors``, including the
    first.
    """
    if as_json:
        said: dict[str, object] = {"error": error_object(error)}
        if more:
            said["errors"] = [error_object(each) for each in (error, *more)]
        click.echo(json.dumps(said, indent=2, ensure_ascii=False))
    for each in (error, *more):
        click.echo(f"perphctl: {each}", err=True)
    raise SystemExit(exit_code(error))


def error_object(error: PerphError) -> dict[str, str]:
    """The error in the API's form."""
    match error:
        case Refused():
            return {"code": "failed", "message": str(error), "key": "", "allowed": ""} | error.error
        case ConfigError():
            found = {"code": "refused", "key": error.key, "allowed": error.allowed}
        case Unreachable():
            found = {"code": "unreachable", "key": "", "allowed": ""}
        case NotPermitted() | Denied():
            found = {"code": "not-permitted", "key": "", "allowed": ""}
        case _:
            found = {"code": "failed", "key": "", "allowed": ""}
    return found | {"message": str(error)}


def exit_code(error: PerphError) -> int:
    """The documented exit code of an error."""
    match error:
        case Unreachable():
            return EXIT_UNREACHABLE
        case NotPermitted() | Denied():
            return EXIT_NOT_PERMITTED
        case Refused() if error.code == "not-found":
            return EXIT_NOT_FOUND
        case _:
            return EXIT_FAILED
