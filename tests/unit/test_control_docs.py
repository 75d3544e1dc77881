"""The documents say what is so: the configuration reference, the manual pages, and what they name."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from perphd.adapters.kubernetes import extender_program, publish_program
from perphd.adapters.slurm import program as slurm
from perphd.adapters.yarn import program as yarn
from perphd.commands import daemon
from perphd.commands.cli import cli
from perphd.config.file import parse
from perphd.config.schema import keys_of, read_value
from perphd.config.workloads import WORKLOAD_TABLES
from perphd.control.errors import Code
from perphd.control.limits import ApiLimits
from perphd.control.routes import Routes
from tests.unit.control_fake import Served
from tools.reference.config import EXAMPLE, default_text, man, markdown

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "perphd.8",
    "perphctl.1",
    "perphd.conf.5",
    "perphd-extender.8",
    "perphd-publish.8",
    "perphd-slurm.8",
    "perphd-yarn.8",
)
ANEW = "generate it again: python -m tools.reference.config"


def plain_page(name: str) -> str:
    """A manual page's source without its font changes and escapes."""
    source = (DOCS / "man" / name).read_text()
    return re.sub(r"\\f[A-Z]", "", source).replace("\\-", "-")


def test_the_configuration_reference_is_what_the_schema_says():
    assert (DOCS / "config.md").read_text() == markdown(), ANEW
    assert (DOCS / "man" / "perphd.conf.5").read_text() == man(), ANEW


def test_the_example_is_accepted():
    assert len(parse(EXAMPLE, "example").workloads) == 2


@pytest.mark.parametrize("table", WORKLOAD_TABLES.values())
def test_documented_defaults_are_accepted(table: type):
    for key in keys_of(table):
        text = default_text(key)
        if text not in ("required", "none") and key.type_name == "size":
            assert read_value(key, text.strip('"'), "docs", key.name) == key.default


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_clean_for_groff(name: str):
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("needs groff (apt install groff)")
    command = [groff, "-man", "-ww", "-Tutf8", "-rLL=100n", str(DOCS / "man" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(
    ("group", "page"),
    [
        (cli, "perphctl.1"),
        (daemon.main, "perphd.8"),
        (extender_program.main, "perphd-extender.8"),
        (publish_program.main, "perphd-publish.8"),
        (slurm.main, "perphd-slurm.8"),
        (yarn.main, "perphd-yarn.8"),
    ],
)
def test_every_command_and_option_is_in_the_manual(group: click.Group, page: str):
    manual = plain_page(page)
    for path, command in commands(group):
        assert " ".join(path) in manual, path
        for option in command.params:
            if isinstance(option, click.Option):
                assert any(name in manual for name in option.opts), (path, option.opts)
            else:
                assert command.help, path


def test_help_and_manual_name_the_same_commands_that_need_no_daemon() -> None:
    def named(text: str) -> set[str]:
        words = re.sub(r"\.(?:BR|IR|B) ", "", text).replace('"', "").replace("FILE", "")
        listed = re.sub(r"\s+and\s+", ", ", words)
        return {" ".join(name.split()) for name in listed.split(",") if name.strip()}

    assert cli.help is not None
    in_help = re.search(r"\n\n\s*(init.*?) also work while", cli.help, re.DOTALL)
    in_manual = re.search(r"The commands (.*?) also work while", " ".join(plain_page("perphctl.1").split()))
    assert in_help is not None
    assert in_manual is not None
    assert named(in_help[1]) == named(in_manual[1])
    assert {"init", "iopath", "query", "export", "model evaluate", "model merge"} <= named(in_help[1])


def test_every_command_says_what_it_does_in_one_line():
    for path, command in commands(cli):
        shown = command.get_short_help_str(60)
        assert shown, path
        assert not shown.endswith("..."), path


def test_every_route_and_code_is_documented(tmp_path: Path):
    manual = plain_page("perphd.8")
    served = Served(tmp_path, ApiLimits())
    routes: Routes = served.server._routes
    for route in routes.table():
        path = route.path.replace("{name}", "NAME")
        assert path in manual or path == "/v1/metrics", route.path
    assert all(code.status >= 400 for code in Code)
