"""Check documents for awkward English: python -m tools.prose [FILE ...].

Prints one line per finding (file, line, pattern, text) and exits with 1 if there is any. Code blocks, inline code and
tables printed by benchmarks are skipped. Without files, the documents in ``CHECKED`` are read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CHECKED: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/glossary.md",
    "docs/measuring.md",
    "docs/tutorial.md",
    "docs/troubleshooting.md",
    "docs/explanation",
    "docs/how-to",
)
"""Documents held to the patterns; a folder stands for its Markdown files."""
PATTERNS: Final = {
    "free relative as subject": (
        r"(?:^|[.:;] )(?:What|Who|Whoever|Whatever) (?:is|was|were|are|may|has|had|can|comes|lies|asks)\b"
    ),
    "unbound 'so'": r"\bso (?:often|long|many|much|few|soon)\b(?! (?:as|that))",
    "passive 'told' or 'said' without an agent": r"\b(?:is|was|are|were) (?:told|said)\b(?! (?:by|to))",
    "'of' fronting": r"(?:^|[.;] )Of (?!course)[a-z]+[^.]*, ",
    "archaic word": r"\b(?:lest|hence|anew|hitherto|of late|for ever|therein|thereof)\b",
}


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name of the pattern and matched text, for each finding in a Markdown text."""
    inside_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            inside_code = not inside_code
            continue
        if inside_code or line.startswith("    "):
            continue
        prose = re.sub(r"`[^`]*`", "", line)
        for name, pattern in PATTERNS.items():
            for match in re.finditer(pattern, prose):
                yield number, name, match[0].strip()


def documents(names: list[str]) -> list[Path]:
    """The Markdown files behind these names, relative to the project."""
    found: list[Path] = []
    for name in names:
        path = ROOT / name
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def main(names: list[str]) -> int:
    """Check the named documents, or all that are held to the patterns. Returns the exit status."""
    count = 0
    for path in documents(names or list(CHECKED)):
        for number, name, text in findings(path.read_text()):
            print(f"{path.relative_to(ROOT)}:{number}: {name}: {text!r}")
            count += 1
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
