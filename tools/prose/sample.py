"""Draw docstrings, comments and messages at random for a reader: python -m tools.prose.sample [--seed N] [FOLDER ...].

A reader who has not written the texts counts those that a professional editor would rewrite; the goal is at most 5 %.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("perphd", "rdt")
LEAST_WORDS: Final = 5
"""Shorter texts are too short to be awkward."""
_MESSAGE_CALLS: Final = re.compile(
    r"(?:Error|Refused|Unavailable|Invalid|Gone|Busy|UsageError|NotEnforceable|warning|error|info|exception|warn|say)$"
)


def paths(packages: Sequence[str]) -> Iterator[Path]:
    """Every module below these folders of the project."""
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def explanations(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings (those below constants included) and comments, with their lines."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, " ".join(node.value.value.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:--|noqa|type:|fmt:|!)", token.string):
            yield token.start[0], token.string.lstrip("# ")


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Texts given to errors, reasons and log lines; values in them are shown as ``{}``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if not _MESSAGE_CALLS.search(name):
            continue
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.lineno, argument.value
            elif isinstance(argument, ast.JoinedStr):
                parts = (str(p.value) if isinstance(p, ast.Constant) else "{}" for p in argument.values)
                yield argument.lineno, "".join(parts)


def main() -> int:
    """Print the sample, one text per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--explanations", type=int, default=140)
    parser.add_argument("--messages", type=int, default=50)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="folders to draw from")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    for kind, count in ((explanations, given.explanations), (messages, given.messages)):
        found = [
            (path.relative_to(ROOT), line, text)
            for path in paths(given.packages)
            for line, text in kind(path)
            if len(text.split()) >= LEAST_WORDS
        ]
        print(f"{kind.__name__}: {min(count, len(found))} of {len(found)}")
        for place, line, text in sorted(draw.sample(found, min(count, len(found)))):
            print(f"{place}:{line}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
