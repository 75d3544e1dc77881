"""The command line of the detector's benches: each chosen section is measured, printed and appended to a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Lines = list[str]
Sections = Mapping[str, tuple[str, Callable[[argparse.Namespace], Lines]]]
"""Title and measuring function by name."""


def measure(parser: argparse.ArgumentParser, sections: Sections) -> None:
    """Add ``--sections`` and ``--out`` to the options, parse them, and print each section as soon as it is measured."""
    parser.add_argument("--sections", default=",".join(sections), help="some of these, separated by commas")
    parser.add_argument("--out", type=Path, help="Markdown report to append to")
    options = parser.parse_args()
    names = [n for n in options.sections.split(",") if n]
    if unknown := set(names) - set(sections):
        parser.error(f"--sections {','.join(sorted(unknown))}: unknown (allowed: {', '.join(sections)})")
    for name in names:
        title, measured = sections[name]
        text = "\n".join([f"## {title}", "", *measured(options), "", ""])
        sys.stdout.write(text)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(text)
