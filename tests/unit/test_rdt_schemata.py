"""Schemata as the kernel shows and takes them: the captured examples, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdt import DEFAULT_GROUP, Broken, Busy, Cell, Gone, GroupRef, Invalid, Mismatch, Schemata, Unsupported
from rdt.cbm import Cbm
from rdt.schemata import check, differences
from tests.unit.rdt_world import ROOT, World

INFO = World().open().info
FULL = Schemata.of({"MB": {0: 100, 1: 100}, "L3": {0: 0x7FF, 1: 0x7FF}})

names = st.sampled_from(["L3", "L3CODE", "L3DATA", "L2", "MB", "SMBA"])
schematas = st.dictionaries(
    names, st.dictionaries(st.integers(0, 300), st.integers(0, 2**32 - 1), min_size=1, max_size=5), max_size=4
).map(Schemata.of)


@pytest.mark.parametrize(
    ("shown", "values"),
    [
        ("    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n", {"MB": {0: 100, 1: 100}, "L3": {0: 0x7FF, 1: 0x7FF}}),
        ("    MB:0= 20;1= 30\n    L3:0=003;1=030\n", {"MB": {0: 20, 1: 30}, "L3": {0: 3, 1: 0x30}}),
        ("MB:0=100\nL3:0=7ff\n", {"MB": {0: 100}, "L3": {0: 0x7FF}}),
        ("L3DATA:0=00f;1=7ff\nL3CODE:0=7ff;1=7ff\n", {"L3DATA": {0: 15, 1: 2047}, "L3CODE": {0: 2047, 1: 2047}}),
        ("  SMBA:0=2048;8=  16\n    L3:0=ffff;8=00ff\n", {"SMBA": {0: 2048, 8: 16}, "L3": {0: 65535, 8: 255}}),
        ("MB:0=4294967295;1=5000\n", {"MB": {0: 2**32 - 1, 1: 5000}}),
        ("", {}),
    ],
)  # fmt: skip
def test_what_the_kernel_shows_is_read(shown, values):
    assert Schemata.parse(shown) == Schemata.of(values)


def test_equal_schemata_write_equal_texts_whatever_the_order_of_their_lines():
    shown = Schemata.parse("    MB:0= 40;1=100\nL3DATA:0=7c0;1=7c0\nL3CODE:0=7c0;1=7c0\n")
    made = Schemata.of(
        {"L3CODE": {1: 0x7C0, 0: 0x7C0}, "L3DATA": {0: 0x7C0, 1: 0x7C0}, "MB": {0: 40, 1: 100}}
    )
    assert shown == made
    assert shown.to_write() == made.to_write() == "L3DATA:0=7c0;1=7c0\nL3CODE:0=7c0;1=7c0\nMB:0=40;1=100\n"
    assert str(shown) == str(made)


@given(schematas, st.randoms())
def test_the_text_depends_on_the_values_alone(schemata, random):
    items = list(schemata.values.items())
    random.shuffle(items)
    other = Schemata.of(dict(items))
    assert other == schemata
    assert str(other) == str(schemata)
    if schemata:
        assert other.to_write() == schemata.to_write()


def test_lines_that_are_not_understood_are_kept_and_never_written():
    text = "    L3:uninitialized\n    MB:0= 50\nNEWRES:0=a,b;1=c\n"
    schemata = Schemata.parse(text)
    assert schemata.opaque == {"L3": "uninitialized", "NEWRES": "0=a,b;1=c"}
    assert schemata.to_write() == "MB:0=50\n"


@pytest.mark.parametrize(
    "text", ["L3 0=7f", "L3:0=7f;0=3f", "L3:0=xyz", "MB:0=0x20", "L3:0=1\nL3:0=1", "L3:-1=1"]
)
def test_what_is_no_schemata_is_told_with_its_place(text):
    with pytest.raises(Broken, match="/r/schemata"):
        Schemata.parse(text, "/r/schemata")


def test_one_write_has_all_lines_and_an_end():
    assert (
        Schemata.of({"MB": {0: 30}, "L3": {8: Cbm(0xFF), 0: Cbm(1)}}).to_write() == "L3:0=1;8=ff\nMB:0=30\n"
    )
    with pytest.raises(Invalid, match="has no values"):
        Schemata().to_write()
    with pytest.raises(Invalid, match="longer than 4095 bytes"):
        Schemata.of({"L3": dict.fromkeys(range(500), 2**32)}).to_write()


@pytest.mark.parametrize(
    "shown",
    [
        "    MB:0= 20;1= 30\n    L3:0=003;1=030\n",
        "    MB:0=100;1=100\nL3DATA:0=00f;1=7ff\nL3CODE:0=7ff;1=7ff\n",
    ],
)
def test_it_can_be_shown_as_the_kernel_does(shown):
    options = "cdp" if "CODE" in shown else ""
    assert Schemata.parse(shown).shown(World(options=options).open().info, name_width=6) == shown


@given(schematas)
def test_what_is_written_is_read_back_the_same(schemata):
    if schemata:
        assert Schemata.parse(schemata.to_write()) == schemata
    assert Schemata.parse(schemata.shown(INFO, name_width=6)) == schemata


@given(schematas, schematas)
def test_laws_of_laying_over_and_undoing(base, change):
    both = base.merged(change)
    assert all(both.get(cell.resource, cell.domain) == value for cell, value in change.cells())
    present, absent = change.present_in(base)
    assert {cell for cell, _ in present.cells()} | set(absent) == {cell for cell, _ in change.cells()}
    assert base.merged(present).merged(present.restored_by(base)) == base
    assert differences(change, both, INFO) == ()


def test_masks_are_values():
    assert FULL.masks("L3")[1].ways == 11
    assert FULL.masks("L2") == {}
    assert FULL.domains("MB") == (0, 1)


def test_bandwidths_that_the_kernel_rounds_up_are_no_difference():
    wanted = Schemata.of({"MB": {0: 15, 1: 21}})
    assert differences(wanted, Schemata.of({"MB": {0: 20, 1: 30}}), INFO) == ()
    (found,) = differences(wanted, Schemata.of({"MB": {0: 20}}), INFO)
    assert str(found) == "MB:1 is absent, wanted 21"
    (found,) = differences(Schemata.of({"L3": {0: 0xF}}), Schemata.of({"L3": {0: 0x1F}}), INFO)
    assert str(found) == "L3:0 is 1f, wanted f"


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"L2": {0: 1}}, Unsupported, "no resource L2; there are MB, L3"),
        ({"L3CODE": {0: 1}}, Unsupported, "no resource L3CODE"),
        ({"L3": {9: 1}}, Gone, "L3 has no domain 9; it has 0, 1"),
        ({"L3": {0: 0}}, Invalid, "fewer than 1"),
        ({"L3": {0: 0xFFF}}, Invalid, "outside of 7ff"),
        ({"MB": {0: 5}}, Invalid, "5 % is outside of 10 to 100 %"),
        ({"MB": {0: 101}}, Invalid, "101 %"),
        ({"MB": {0: -10}}, Invalid, "negative"),
    ],
)
def test_what_cannot_be_is_refused_before_the_kernel_is_asked(values, kind, words):
    with pytest.raises(kind, match=words):
        check(Schemata.of(values), INFO, FULL)


def test_masks_with_holes_or_empty_where_the_machine_takes_them():
    amd, haswell = World("amd").open(), World("four-closids").open()
    check(Schemata.of({"L3": {0: 0b101, 8: 0}, "MB": {9: 16}}), amd.info, amd.schemata())
    with pytest.raises(Invalid, match="holes"):
        check(Schemata.of({"L3": {0: 0b101}}), haswell.info, haswell.schemata())
    with pytest.raises(Invalid, match="fewer than 2"):
        check(Schemata.of({"L3": {0: 0b100}}), haswell.info, haswell.schemata())


def test_a_change_is_one_write_of_what_differs():
    world = World()
    resctrl = world.open()
    applied = resctrl.apply(DEFAULT_GROUP, Schemata.of({"L3": {0: 0x7F, 1: 0x7FF}, "MB": {0: 15}}))
    assert world.writes == [("schemata", "L3:0=7f\nMB:0=15")]
    assert applied.after == Schemata.of({"L3": {0: 0x7F, 1: 0x7FF}, "MB": {0: 20, 1: 100}})
    assert applied.undo == Schemata.of({"L3": {0: 0x7FF}, "MB": {0: 100}})
    again = resctrl.apply(DEFAULT_GROUP, Schemata.of({"L3": {0: 0x7F}, "MB": {0: 15}}))
    assert not again.wrote
    assert len(world.writes) == 1
    assert resctrl.apply(DEFAULT_GROUP, applied.undo).after == applied.before


def test_another_writer_in_between_is_noticed():
    world = World()
    resctrl = world.open()

    def meddle(path: str, text: str) -> None:
        world.fs.on_write = None
        world.write("schemata", "L3:0=1\n")

    world.fs.on_write = meddle
    with pytest.raises(Mismatch, match="L3:0 is 1, wanted f") as caught:
        resctrl.apply(DEFAULT_GROUP, Schemata.of({"L3": {0: 0xF}}))
    assert caught.value.actual == resctrl.schemata()


def test_bandwidth_taken_while_parsing_is_put_back_when_the_write_is_refused():
    """With mba_MBps the kernel takes MB values before it has seen the end of the write."""
    world = World("mba-mbps")
    world.write("schemata", "MB:0=700\n")
    resctrl = world.open()
    before = resctrl.schemata()
    with pytest.raises(OSError):
        world.write("schemata", "MB:0=500\nL3:0=5\n")
    assert world.text("schemata").startswith("    MB:0=500;")
    world.write("schemata", "MB:0=700\n")
    with pytest.raises(Invalid, match="non-consecutive"):
        resctrl.apply(DEFAULT_GROUP, Schemata.of({"MB": {0: 500}, "L3": {0: 0b101}}))
    assert resctrl.schemata() == before
    write, half = world.fs.write, type(world.tree.machine.cpus)(0b0011)

    def unplugging_write(path: str, data: bytes) -> None:
        world.tree.set_online(half)
        write(path, data)

    world.fs.write = unplugging_write  # type: ignore[method-assign]
    with pytest.raises(Gone) as caught:
        resctrl.apply(DEFAULT_GROUP, Schemata.of({"MB": {0: 500, 1: 500}}))
    assert caught.value.actual == resctrl.schemata()
    assert resctrl.schemata().get("MB", 0) == 700


def test_a_domain_that_went_away_and_came_back_is_written_again():
    world = World()
    resctrl = world.open()
    target = Schemata.of({"L3": {0: 3, 1: 0x30}, "MB": {0: 20, 1: 30}})
    both = world.tree.machine.cpus
    first = type(both)(0b0011)
    resctrl.ensure(DEFAULT_GROUP, target)
    world.tree.set_online(first)
    assert resctrl.domain_change().vanished == (Cell("L3", 1), Cell("MB", 1))
    offline = resctrl.ensure(DEFAULT_GROUP, target)
    assert set(offline.absent) == {Cell("L3", 1), Cell("MB", 1)}
    assert not offline.wrote
    with pytest.raises(Gone, match="L3 has no domain 1"):
        resctrl.apply(DEFAULT_GROUP, target)
    world.tree.set_online(both)
    assert not resctrl.domain_change()
    back = resctrl.ensure(DEFAULT_GROUP, target)
    assert back.wrote == Schemata.of({"L3": {1: 0x30}, "MB": {1: 30}})
    assert resctrl.schemata() == target
    with pytest.raises(Unsupported, match="there is no L2"):
        resctrl.ensure(DEFAULT_GROUP, Schemata.of({"L2": {0: 1}}))


def test_a_domain_that_goes_between_look_and_write_is_left_out():
    world = World()
    resctrl = world.open()
    both = world.tree.machine.cpus
    write, first = world.fs.write, type(both)(0b0011)

    def unplugging_write(path: str, data: bytes) -> None:
        world.tree.set_online(first)
        write(path, data)

    world.fs.write = unplugging_write  # type: ignore[method-assign]
    target = Schemata.of({"L3": {0: 3, 1: 0x30}})
    with pytest.raises(Gone, match="no longer present: L3:1"):
        resctrl.apply(DEFAULT_GROUP, target)
    world.tree.set_online(both)
    applied = resctrl.ensure(DEFAULT_GROUP, target)
    assert applied.absent == (Cell("L3", 1),)
    assert world.text("schemata") == "    MB:0=100\n    L3:0=003\n"


def test_a_domain_that_goes_between_write_and_reading_back_is_left_out():
    world = World()
    resctrl = world.open()
    both = world.tree.machine.cpus
    world.fs.on_write = lambda path, text: world.tree.set_online(type(both)(0b0011))
    applied = resctrl.ensure(DEFAULT_GROUP, Schemata.of({"L3": {0: 3, 1: 0x30}}))
    assert applied.absent == (Cell("L3", 1),)
    assert applied.after == resctrl.schemata() == Schemata.of({"MB": {0: 100}, "L3": {0: 3}})
    assert (applied.wrote, applied.undo) == (Schemata.of({"L3": {0: 3}}), Schemata.of({"L3": {0: 0x7FF}}))


def test_only_to_write_others_are_kept_out():
    world = World()
    resctrl = world.open()
    with world.fs.lock(ROOT, exclusive=False, timeout_s=0.0):  # another program reads
        assert not resctrl.ensure(DEFAULT_GROUP, Schemata.of({"L3": {0: 0x7FF}})).wrote
        with pytest.raises(Busy):
            resctrl.ensure(DEFAULT_GROUP, Schemata.of({"L3": {0: 1}}))


def test_mode_is_set_and_read_back():
    world = World()
    for name in ("a", "b"):
        world.mkdir(name)
    resctrl = world.open()
    with pytest.raises(Invalid) as caught:
        resctrl.set_mode(GroupRef("a"), "exclusive")
    assert caught.value.status == "Schemata overlaps"
    with pytest.raises(Unsupported):
        resctrl.set_mode(GroupRef("a"), "bogus")
    resctrl.apply(DEFAULT_GROUP, Schemata.of({"L3": {0: 0x7F0, 1: 0x7F0}}))
    resctrl.apply(GroupRef("b"), Schemata.of({"L3": {0: 0x7F0, 1: 0x7F0}}))
    resctrl.apply(GroupRef("a"), Schemata.of({"L3": {0: 3, 1: 3}}))
    resctrl.set_mode(GroupRef("a"), "exclusive")
    assert world.text("a/mode") == "exclusive\n"
    with pytest.raises(Invalid) as caught:
        resctrl.apply(GroupRef("b"), Schemata.of({"L3": {0: 7}}))
    assert caught.value.status == "Overlaps with exclusive group"


def test_a_monitor_group_has_no_schemata():
    with pytest.raises(Unsupported, match="its control group has"):
        World().open().schemata(GroupRef("", "m"))
