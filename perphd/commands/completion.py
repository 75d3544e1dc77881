"""bash completion without Python: the script contains every command and option, and reads names from a file.

Starting Python takes a third of a second, or several seconds on a busy host, which is too long for a key press. The
daemon keeps the names of its workloads in a file beside its socket (``kept_file``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

NAMES: Final = "/run/perphd/workloads"
"""The file with the names: lines ``lra NAME`` and ``batch NAME``."""
WORKLOAD_ARGUMENTS: Final = frozenset({"workload", "lra", "name"})
"""Names of the arguments that take a workload's name."""
WORKLOAD_OPTIONS: Final = frozenset({"--workload"})
_NEW_NAMES: Final = frozenset({"lra add", "batch add"})
"""Commands whose first argument is a new name, which cannot be completed."""

_SCRIPT: Final = """\
# bash completion of {program}; generated, starts no program.
_{function}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev= path= word words= kind name i
    ((COMP_CWORD > 0)) && prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case "$path${{path:+ }}$word" in
{steps}
        esac
    done
    case "$path $prev" in
{values}
    esac
    if [[ -z $words ]]; then
        case "$path" in
{commands}
        esac
    fi
    if [[ $words == *@workloads@* ]]; then
        words=${{words//@workloads@/}}
        if [[ -r ${{PERPHD_NAMES:-{names}}} ]]; then
            while read -r kind name; do words+=" $name"; done < "${{PERPHD_NAMES:-{names}}}"
        fi
    fi
    if [[ $words == @files@ ]]; then
        COMPREPLY=($(compgen -f -- "$cur"))
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o filenames -o bashdefault -F _{function} {program}
"""


def bash(program: str, root: click.Group) -> str:
    """The completion script for one program."""
    commands = list(_commands(root, ()))
    steps = "|".join(f'"{" ".join(path)}"' for path, _ in commands if path)
    values = [line for path, command in commands for line in _values(path, command)]
    words = [
        f'        "{" ".join(path)}") words="{" ".join(_words(path, command))}" ;;'
        for path, command in commands
    ]
    return _SCRIPT.format(
        program=program,
        function=re.sub(r"\W", "_", program),
        steps=f'            {steps}) path+="${{path:+ }}$word" ;;',
        values="\n".join(f"        {line}" for line in values),
        commands="\n".join(words),
        names=NAMES,
    )


def complete_names(root: click.Group) -> None:
    """Let click complete workload names, for zsh and fish: their scripts ask the program itself."""
    for path, command in _commands(root, ()):
        for parameter in command.params:
            if _is_workload(path, parameter):
                setattr(parameter, "shell_complete", _names)  # noqa: B010, a method of click's otherwise


def _is_workload(path: tuple[str, ...], parameter: click.Parameter) -> bool:
    if isinstance(parameter, click.Option):
        return bool(WORKLOAD_OPTIONS & set(parameter.opts))
    is_choice = isinstance(parameter.type, click.Choice)
    return not is_choice and parameter.name in WORKLOAD_ARGUMENTS and " ".join(path) not in _NEW_NAMES


def _names(_context: click.Context, incomplete: str) -> list[CompletionItem]:
    try:
        lines = Path(os.environ.get("PERPHD_NAMES", NAMES)).read_text(errors="replace").splitlines()
    except OSError:
        return []
    names = (line.partition(" ")[2] for line in lines)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            if not below.hidden:
                yield from _commands(below, (*path, name))


def _words(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    """Candidates: commands, options, and values of the first argument."""
    if isinstance(command, click.Group):
        yield from sorted(name for name, below in command.commands.items() if not below.hidden)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (name for name in parameter.opts if name.startswith("--") or len(parameter.opts) == 1)
        elif isinstance(parameter.type, click.Choice):
            yield from map(str, parameter.type.choices)
        elif _is_workload(path, parameter):
            yield "@workloads@"
    yield "--help"


def _values(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    """Candidates for the value of an option."""
    for parameter in command.params:
        if not isinstance(parameter, click.Option) or parameter.is_flag:
            continue
        patterns = "|".join(f'"{" ".join(path)} {name}"' for name in parameter.opts)
        if isinstance(parameter.type, click.Choice):
            yield f'{patterns}) words="{" ".join(map(str, parameter.type.choices))}" ;;'
        elif _is_workload(path, parameter):
            yield f'{patterns}) words="@workloads@" ;;'
        else:
            yield f'{patterns}) words="@files@" ;;'
