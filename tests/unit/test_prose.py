"""The prose lint finds what it is meant to find and leaves code alone."""

from __future__ import annotations

import pytest

from tools.prose.__main__ import CHECKED, documents, findings


@pytest.mark.parametrize(
    "text",
    [
        "What is refused waits.",
        "It looks so often.",
        "The reason is told.",
        "Of batch, CPU use is measured.",
        "It is made anew.",
    ],
)
def test_awkward_sentences_are_found(text: str) -> None:
    assert list(findings(text))


@pytest.mark.parametrize(
    "text",
    [
        "Refused writes are retried with exponential backoff.",
        "As long as it runs, it samples.",
        "Use `What is it` as a key.",
        "```\nWhat is this\n```",
        "    what is typed anew",
        "The daemon runs so that nothing waits.",
    ],
)
def test_plain_sentences_and_code_pass(text: str) -> None:
    assert not list(findings(text))


def test_every_checked_document_exists() -> None:
    assert all(path.is_file() for path in documents(list(CHECKED)))


def test_the_readme_stays_short() -> None:
    (readme,) = documents(["README.md"])
    assert len(readme.read_text().splitlines()) <= 150
