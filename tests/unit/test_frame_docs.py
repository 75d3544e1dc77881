"""What the documents tell people to type exists; what is declared is what is used."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import click
import pytest

from perphd.adapters.kubernetes.extender_program import main as extender
from perphd.adapters.kubernetes.publish_program import main as publish
from perphd.adapters.slurm.program import main as slurm
from perphd.adapters.yarn.program import main as yarn
from perphd.commands.cli import cli as perphctl
from perphd.commands.daemon import main as perphd
from perphd.config.file import load

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/how-to").glob("*.md"))),
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "prometheus-client": "prometheus_client",
    "systemd-python": "systemd",
    "dbus-fast": "dbus_fast",
}
IMPORTED_ELSEWHERE = {"highspy", "lightgbm", "pyarrow"}
"""Imported by name, by the process that needs them: no import of them may be found in what the daemon loads."""


def _code_lines(document: str) -> list[str]:
    text = (ROOT / document).read_text()
    inline = re.findall(r"`([^`]+)`", text.replace("\n", " "))
    return [line.strip() for line in text.splitlines() if line.startswith("    ")] + inline


def _commands(program: str) -> list[list[str]]:
    found = []
    for document in DOCUMENTS:
        for line in _code_lines(document):
            match = re.match(rf"(?:sudo )?(?:\.venv/bin/)?{program} (.+)", line)
            if match:
                found.append(match[1].split(" #", maxsplit=1)[0].split())
    return found


@pytest.mark.parametrize(
    ("program", "group"),
    [
        ("perphd", perphd),
        ("perphctl", perphctl),
        ("perphd-extender", extender),
        ("perphd-publish", publish),
        ("perphd-slurm", slurm),
        ("perphd-yarn", yarn),
    ],
)
def test_every_command_in_the_documents_exists(program: str, group: click.Group) -> None:
    commands = _commands(program)
    assert commands, f"the documents no longer show {program}: this test looks at nothing"
    for line in commands:
        words = line
        command: click.Command = group
        while isinstance(command, click.Group) and words:
            word, *words = words
            following = command.commands.get(word)
            assert following is not None, f"{program}: no command {word!r}"
            command = following
        words = words[: words.index("--")] if "--" in words else words  # what follows is another program's
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, (
            f"{program} {command.name}: {words}"
        )


def test_every_target_in_the_documents_exists() -> None:
    wanted = {
        match[1]
        for document in (*DOCUMENTS, *(str(path.relative_to(ROOT)) for path in ROOT.glob("*/README.md")))
        for line in _code_lines(document)
        if (match := re.match(r"make ([a-z-]+)", line))
    }
    assert wanted
    assert wanted <= TARGETS


def test_every_file_in_the_documents_exists() -> None:
    for document in DOCUMENTS:
        for path in re.findall(
            r"(?<!etc/)(?<!run/)(?<!lib/)\b((?:docs|tools|packaging|systemd)/[\w./-]*\w)",
            (ROOT / document).read_text(),
        ):
            assert (ROOT / path).exists(), f"{document} names {path}"


@pytest.mark.parametrize("name", ["perphd.toml", "simulated.toml"])
def test_the_examples_are_accepted(name: str) -> None:
    config = load(ROOT / "docs/examples" / name, runtime=False)
    assert config.warnings == ()
    assert len(config.workloads) == 2


def _imported(folder: str) -> set[str]:
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"perphd", "rdt", "tools", "tests"}


def _declared(requirements: list[str]) -> set[str]:
    names = (re.match(r"[\w.-]+", text) for text in requirements)
    return {IMPORTED_AS.get(name[0], name[0].lower()) for name in names if name is not None}


def test_dependencies_are_those_that_are_imported() -> None:
    runtime = _declared(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    for_perphd = ("systemd", "worker", "network", "export", "fuse", "top")
    optional = _declared([text for extra in for_perphd for text in extras[extra]])
    imported = _imported("perphd")
    assert runtime - imported == set(), "declared, not imported"
    assert imported - runtime - optional == set(), "imported, not declared"
    assert optional - imported == IMPORTED_ELSEWHERE


def test_every_dependency_is_locked_with_a_hash_and_without_an_address() -> None:
    for name, wanted in (
        ("runtime.txt", _declared(PROJECT["dependencies"])),
        (
            "dev.txt",
            _declared([text for extra in PROJECT["optional-dependencies"].values() for text in extra]),
        ),
    ):
        text = (ROOT / "requirements" / name).read_text()
        locked = re.findall(r"^([\w.-]+)==\S+ \\\n {4}--hash=sha256:", text, re.MULTILINE)
        assert len(locked) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE))
        assert wanted <= _declared(locked)
        assert "://" not in text
        assert not re.search(r"^--?(?:i|index|extra|find|trusted)", text, re.MULTILINE)


def test_the_numbers_of_the_algorithm_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)\.([A-Z_]+)` \| ([0-9.]+) \|", (ROOT / "docs/algorithm.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 10
    for module, name, value in rows:
        (path,) = [
            *(ROOT / "perphd/admission").rglob(f"{module}.py"),
            *(ROOT / "perphd/domain").glob(f"{module}.py"),
        ]
        found = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        assert getattr(found, name) == float(value), name
