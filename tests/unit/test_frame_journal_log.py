"""The log as the journal gets it: systemd's own library makes the entry, the socket alone is replaced."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.control.journal_log import JournalHandler, is_journal

journal = pytest.importorskip("systemd.journal", reason="needs systemd-python")


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    sent: list[dict[str, str]] = []

    def sendv(*fields: str) -> None:
        sent.append(dict(field.split("=", 1) for field in fields))

    monkeypatch.setattr(journal, "sendv", sendv)
    return sent


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    found = logging.getLogger("perphd.test.journal")
    handler = JournalHandler(journal.send)
    found.addHandler(handler)
    found.propagate = False
    found.setLevel(logging.DEBUG)
    yield found
    found.removeHandler(handler)


def test_a_sentence_for_people_and_fields_for_programs(
    log: logging.Logger, entries: list[dict[str, str]]
) -> None:
    log.warning("%s: too slow", "db", extra={"fields": {"workload": "db", "event": "decision", "cause": ""}})
    assert len(entries) == 1
    entry = entries[0]
    assert entry["MESSAGE"] == "db: too slow"
    assert (entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]) == ("4", "perphd")
    assert (entry["PERPHD_WORKLOAD"], entry["PERPHD_EVENT"]) == ("db", "decision")
    assert "PERPHD_CAUSE" not in entry, "what is not there is left out"
    assert entry["CODE_FILE"] == __file__
    assert entry["CODE_FUNC"] == "test_a_sentence_for_people_and_fields_for_programs"


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, "7"), (logging.INFO, "6"), (logging.WARNING, "4"), (logging.ERROR, "3"), (50, "2")],
)
def test_severities(log: logging.Logger, entries: list[dict[str, str]], level: int, priority: str) -> None:
    log.log(level, "x")
    assert entries[0]["PRIORITY"] == priority


def test_an_error_comes_with_its_traceback(log: logging.Logger, entries: list[dict[str, str]]) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("tick failed")
    assert entries[0]["MESSAGE"].startswith("tick failed\nTraceback")
    assert "ValueError: odd" in entries[0]["MESSAGE"]


def test_only_the_stream_that_systemd_names_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as file:
        status = os.fstat(file.fileno())
        named = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(named, file.fileno())
        assert not is_journal({}, file.fileno())
        assert not is_journal({"JOURNAL_STREAM": "1:2"}, file.fileno())
        fd = file.fileno()
    assert not is_journal(named, fd), "a closed descriptor"


def test_a_kernel_path_that_is_no_utf8_costs_no_line(
    log: logging.Logger, entries: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    log.warning("%s: refused", os.fsdecode(b"/sys/fs/cgroup/b\xffd"))
    assert entries[0]["MESSAGE"] == r"/sys/fs/cgroup/b\udcffd: refused"
    assert capsys.readouterr().err == ""
