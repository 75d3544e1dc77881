"""Reading numbers out of kernel files: any bytes give a number that is really there, or None."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.monitor.parse import (
    blkio_bytes,
    io_stat_bytes,
    line_needle,
    psi_total_us,
    values_of,
    whole_number,
)
from perphd.monitor.rates import Rate

KEYS = st.text(alphabet="abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
NUMBERS = st.integers(min_value=0, max_value=2**64)


@given(st.binary())
def test_no_bytes_make_a_parser_raise(data: bytes):
    needles = [line_needle("anon"), line_needle("pgmajfault")]
    for value in [whole_number(data), *values_of(data, needles), psi_total_us(data, b"some")]:
        assert value is None or value >= 0
    for pair in (io_stat_bytes(data), blkio_bytes(data)):
        assert pair is None or min(pair) >= 0


@given(st.dictionaries(KEYS, NUMBERS, min_size=1, max_size=30), st.data())
def test_flat_keyed_lines_are_found_in_any_order(lines: dict[str, int], data: st.DataObject):
    text = "".join(f"{key} {value}\n" for key, value in lines.items()).encode()
    asked = data.draw(st.lists(st.one_of(st.sampled_from(sorted(lines)), KEYS), max_size=20))
    assert values_of(text, [line_needle(key) for key in asked]) == [lines.get(key) for key in asked]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"anon 5", 5),
        (b"anon 5\n", 5),
        (b"shanon 5\n", None),
        (b"anon_thp 5\n", None),
        (b"anon -5\n", None),
        (b"anon 1_0\n", None),
        (b"anon \n", None),
        (b"anon 5 6\n", None),
        (b"x anon 5\n", None),
        (b"", None),
    ],
)
def test_only_a_whole_line_counts(data: bytes, expected: int | None):
    assert values_of(data, [line_needle("anon")]) == [expected]


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"12\n", 12), (b"max\n", None), (b"", None), (b"-1\n", None), (b"1 2\n", None), (b"\xd9\xa1\n", None)],
)
def test_whole_number(data: bytes, expected: int | None):
    assert whole_number(data) == expected


@given(NUMBERS, NUMBERS)
def test_psi_totals(some: int, full: int):
    line = "avg10=1.23 avg60=0.00 avg300=0.00 total={}\n"
    data = ("some " + line.format(some) + "full " + line.format(full)).encode()
    assert (psi_total_us(data, b"some"), psi_total_us(data, b"full")) == (some, full)


@pytest.mark.parametrize(
    "data",
    [b"some avg10=0.00\n", b"some total=\n", b"some total=x\n", b"full total=1\n", b"awesome total=1\n"],
)
def test_psi_without_a_total(data: bytes):
    assert psi_total_us(data, b"some") is None


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8))
def test_block_io_is_summed_over_devices(devices: list[tuple[int, int]]):
    expected = (sum(r for r, _ in devices), sum(w for _, w in devices))
    v2 = "".join(
        f"8:{n} rbytes={r} wbytes={w} rios=1 wios=2 dbytes=0 dios=0\n" for n, (r, w) in enumerate(devices)
    )
    assert io_stat_bytes(v2.encode()) == expected
    v1 = "".join(
        f"8:{n} Read {r}\n8:{n} Write {w}\n8:{n} Total {r + w}\n" for n, (r, w) in enumerate(devices)
    )
    assert blkio_bytes(f"{v1}Total {sum(expected)}\n".encode()) == expected


def test_devices_that_did_nothing_are_no_damage():
    assert io_stat_bytes(b"7:7 \n7:6 \n") == (0, 0)
    assert io_stat_bytes(b"") == (0, 0)
    assert io_stat_bytes(b"8:0 rbytes=x wbytes=1\n") is None
    assert io_stat_bytes(b"what is this\n") is None
    assert blkio_bytes(b"") is None


@given(st.lists(st.tuples(st.integers(0, 10**12), st.floats(0.001, 1e6)), min_size=2, max_size=20))
def test_rates_are_never_negative_and_cover_all_growth(steps: list[tuple[int, float]]):
    rate, now_s, value, covered = Rate(), 0.0, 0, 0.0
    rate.update(0, 0.0)
    for growth, elapsed_s in steps:
        now_s, value = now_s + elapsed_s, value + growth
        before_s = now_s - elapsed_s
        grown = rate.update(value, now_s)
        assert isinstance(grown, float)
        assert grown >= 0
        covered += grown * (now_s - before_s)
    assert covered == pytest.approx(value, rel=1e-6, abs=1e-6)
