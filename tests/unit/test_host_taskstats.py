from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import Broken
from perphd.host.taskstats import _attribute, _find


@given(st.lists(st.tuples(st.integers(0, 50), st.binary(max_size=30)), max_size=6), st.integers(0, 50))
def test_attributes_are_found_again(attributes: list[tuple[int, bytes]], wanted: int) -> None:
    run = b"".join(_attribute(kind, value) for kind, value in attributes)
    expected = next((value for kind, value in attributes if kind == wanted), None)
    if expected is None:
        with pytest.raises(Broken, match=f"attribute {wanted}"):
            _find(run, wanted)
    else:
        assert _find(run, wanted) == expected


@given(st.binary(max_size=100), st.integers(0, 65535))
def test_arbitrary_bytes_end(data: bytes, wanted: int) -> None:
    with contextlib.suppress(Broken):
        assert isinstance(_find(data, wanted), bytes)
