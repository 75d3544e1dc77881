from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import Gone, ParseError, Unsupported
from perphd.domain.reading import Unavailable
from perphd.host.fs import KernelFile, RealFs
from perphd.host.psi import PSI_OFF, Pressure, PsiTrigger, Stall, parse_pressure, pressure_at, read_pressure
from tests.unit.host_tree import write_tree

SOME = "some avg10=4.03 avg60=7.59 avg300=2.36 total=7910436"
FULL = "full avg10=0.86 avg60=1.47 avg300=100.00 total=1618144"


class _Refusing:
    """A pressure file that answers with an error."""

    def __init__(self, error: type[Gone] | type[Unsupported], errno: int) -> None:
        self._error = error("/proc/pressure/cpu", "read", errno)

    def read(self) -> bytes:
        raise self._error

    def close(self) -> None:
        pass


def test_both_lines() -> None:
    assert parse_pressure(f"{SOME}\n{FULL}\n") == Pressure(
        Stall(4.03, 7.59, 2.36, 7910436), Stall(0.86, 1.47, 100.0, 1618144)
    )


def test_full_may_be_missing() -> None:
    assert parse_pressure(f"{SOME}\n").full is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        FULL,
        f"{FULL}\n{SOME}\n",
        f"{SOME}\n\n{FULL}",
        f"{SOME}\n{SOME}\n",
        f" {SOME}",
        SOME.replace("total=", "total=-"),
        SOME.replace("4.03", "4"),
        SOME.replace("4.03", "nan"),
        SOME.replace("4.03", "٤.03"),
        SOME + "\n" + FULL + "\nmore",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="pressure reading"):
        parse_pressure(text)


@given(st.text(max_size=200))
def test_arbitrary_text_parses_or_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_pressure(text)


_PCT = st.integers(0, 10000).map(lambda hundredths: f"{hundredths // 100}.{hundredths % 100:02d}")


@given(_PCT, _PCT, _PCT, st.integers(0, 2**64 - 1), st.booleans())
def test_what_the_kernel_prints_is_read_back(a: str, b: str, c: str, total: int, full: bool) -> None:
    line = f"avg10={a} avg60={b} avg300={c} total={total}\n"
    found = parse_pressure(f"some {line}" + (f"full {line}" if full else ""))
    assert found.some == Stall(float(a), float(b), float(c), total)
    assert found.full == (found.some if full else None)


def test_psi_switched_off_is_unavailable_with_the_remedy() -> None:
    off: KernelFile = _Refusing(Unsupported, 95)
    assert read_pressure(off) is PSI_OFF
    assert "psi=1" in PSI_OFF.reason


def test_a_vanished_cgroup_is_told_apart() -> None:
    with pytest.raises(Gone):
        read_pressure(_Refusing(Gone, 19))


def test_reading_by_path(tmp_path: Path) -> None:
    fs = write_tree(tmp_path, {"/good": SOME, "/bad": "no pressure"})

    assert isinstance(pressure_at(fs, "/good"), Pressure)
    bad, missing = pressure_at(fs, "/bad"), pressure_at(fs, "/missing")
    assert isinstance(bad, Unavailable)
    assert "not a pressure reading" in bad.reason
    assert isinstance(missing, Unavailable)
    assert "/missing does not exist" in missing.reason


@pytest.mark.parametrize(
    ("threshold_us", "window_us"), [(1, 499_999), (1, 10_000_001), (0, 1_000_000), (1_000_001, 1_000_000)]
)
async def test_triggers_out_of_the_kernels_range_are_refused(threshold_us: int, window_us: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        PsiTrigger("/proc/pressure/cpu", print, print, threshold_us=threshold_us, window_us=window_us)


async def test_a_trigger_on_a_missing_file_leaves_nothing_open(tmp_path: Path) -> None:
    before = RealFs().listdir("/proc/self/fd")
    with pytest.raises(Gone, match=r"open for a PSI trigger.*some 100000 2000000"):
        PsiTrigger(str(tmp_path / "cpu.pressure"), print, print)
    assert RealFs().listdir("/proc/self/fd") == before
