"""Names of groups, and CPU lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdt import Broken, GroupRef, Invalid, Prefix
from rdt.names import format_cpus, parse_cpus

PREFIX = Prefix("perphd")


@given(st.text(min_size=1, max_size=25))
def test_a_key_is_found_again_in_its_name(key):
    try:
        key.encode()
    except UnicodeEncodeError:
        return
    name = PREFIX.name(key)
    assert PREFIX.key(name) == key
    assert GroupRef(name).relative == name
    assert PREFIX.owns(GroupRef(name))


@given(st.text(max_size=12))
def test_a_name_is_own_only_if_it_could_have_been_made(rest):
    name = f"perphd.{rest}"
    key = PREFIX.key(name)
    assert key is None or PREFIX.name(key) == name


@pytest.mark.parametrize(
    "name", ["perphd", "perphd.", "perphdx.a", "perphd-a", "perphd.a b", "perphd.%2F", "perphd.%41", "x"]
)
def test_names_that_merely_begin_alike_are_others(name):
    assert PREFIX.key(name) is None
    assert not PREFIX.owns(GroupRef(name))


def test_monitor_groups_are_own_in_own_and_in_the_default_group_only():
    assert PREFIX.owns(GroupRef("perphd.a", "perphd.m"))
    assert PREFIX.owns(GroupRef("", "perphd.m"))
    assert not PREFIX.owns(GroupRef("perphd.a", "other"))
    assert not PREFIX.owns(GroupRef("other", "perphd.m"))
    assert not PREFIX.owns(GroupRef())


def test_places():
    assert GroupRef("a", "m").relative == "a/mon_groups/m"
    assert GroupRef("", "m").relative == "mon_groups/m"
    assert GroupRef().relative == ""
    assert GroupRef("a", "m").parent == GroupRef("a")
    assert str(GroupRef()) == "the default group"


@pytest.mark.parametrize("name", ["info", "mon_groups", "mon_data", ".", "..", "a/b", "a\nb", "x" * 256])
def test_what_no_group_can_be_named(name):
    with pytest.raises(Invalid):
        GroupRef(name)
    with pytest.raises(Invalid):
        GroupRef("a", name)


@pytest.mark.parametrize("text", ["", "a.b", "a/b", "x" * 33])
def test_what_is_no_prefix(text):
    with pytest.raises(Invalid):
        Prefix(text)


def test_keys_that_cannot_be_named():
    with pytest.raises(Invalid, match="empty"):
        PREFIX.name("")
    with pytest.raises(Invalid, match="longer"):
        PREFIX.name("/" * 90)


@given(st.frozensets(st.integers(0, 300)))
def test_cpu_lists(cpus):
    assert parse_cpus(format_cpus(cpus) + "\n") == cpus


def test_cpu_lists_as_the_kernel_shows_them():
    assert parse_cpus("0,2-3\n") == {0, 2, 3}
    assert format_cpus([3, 0, 2]) == "0,2-3"
    with pytest.raises(Broken):
        parse_cpus("all")
