"""Classes of errors, and whose sentence of last_cmd_status it is."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from perphd.sim.host import SimHost
from perphd.sim.kernel.proc import foreign_lock
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch
from rdt import (
    Broken,
    Busy,
    Denied,
    Full,
    Gone,
    GroupRef,
    Holder,
    Invalid,
    Locked,
    RealFs,
    Resctrl,
    ResctrlError,
    Schemata,
    Unsupported,
    lock_holders,
)
from rdt.access import Access
from rdt.errors import class_of, from_oserror
from tests.unit.rdt_world import ROOT, World


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [
        (errno.EBUSY, "Out of RMIDs", Busy),
        (errno.ENOSPC, "Out of CLOSIDs", Full),
        (errno.ENODEV, "", Gone),
        (errno.ESRCH, "No task 5", Gone),
        (errno.ENOENT, "", Gone),
        (errno.EINVAL, "Mask out of range", Invalid),
        (errno.EINVAL, "Unknown or unsupported resource name 'L2'", Unsupported),
        (errno.EINVAL, "Pseudo-locking not supported", Unsupported),
        (errno.EOVERFLOW, "Bad CPU list/mask", Invalid),
        (errno.EACCES, "", Denied),
        (errno.EIO, "", Broken),
        (errno.ENOMEM, "", Broken),
    ],
)
def test_errno_and_sentence_tell_what_to_do(number, status, kind):
    assert class_of(number, status) is kind


def test_an_error_says_what_where_and_why():
    error = from_oserror(
        OSError(errno.EINVAL, ""), "/r/g/schemata", doing="writing", value="L3:0=5\n", status="holes"
    )
    assert str(error) == (
        "writing 'L3:0=5\\n' /r/g/schemata: the kernel says 'holes'; EINVAL (Invalid argument)"
    )
    assert (error.errno, error.path, error.value, error.status) == (22, "/r/g/schemata", "L3:0=5\n", "holes")


def test_errors_survive_the_way_between_processes():
    error = Full(
        "/r/g", doing="making the group", errno=errno.ENOSPC, status="Out of CLOSIDs", reason="8 of 8"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Full
    assert (str(again), again.status, again.reason) == (str(error), error.status, error.reason)


def test_a_refused_mask_carries_the_kernels_sentence():
    world = World()
    world.mkdir("g")
    with pytest.raises(Invalid) as caught:
        world.open().apply(GroupRef("g"), Schemata.of({"L3": {0: 0b101}}))
    assert caught.value.status == "The mask 5 has non-consecutive 1-bits"
    assert caught.value.actual == Schemata.of({"L3": {0: 0x7FF, 1: 0x7FF}, "MB": {0: 100, 1: 100}})


def test_a_sentence_of_an_earlier_request_is_not_taken_for_this_ones():
    world = World()
    with pytest.raises(OSError):
        world.write("schemata", "L3:0=0\n")
    assert world.text("info/last_cmd_status") == "Mask out of range\n"
    access = world.open().access
    with pytest.raises(ResctrlError) as caught:
        access.mkdir("a\nb")  # the kernel says nothing about it, and clears nothing
    assert (caught.value.errno, caught.value.status) == (errno.EINVAL, "")
    with pytest.raises(Gone) as gone:
        access.command("L3:0=7\n", "nothing", "schemata")
    assert gone.value.status == ""
    with pytest.raises(Invalid) as long:
        access.command("L3:0=7" + " " * 5000 + "\n", "schemata")
    assert (long.value.errno, long.value.status) == (errno.E2BIG, "")


def test_of_sentences_that_pile_up_only_the_last_counts():
    world = World()
    access = world.open().access
    for cpus, sentence in (("99\n", "Bad CPU list/mask"), ("abc\n", "Bad CPU list/mask")):
        with pytest.raises(Invalid) as caught:
            access.write_cpus(cpus, "cpus_list")
        assert caught.value.status == sentence
    for number in range(7):
        access.mkdir(f"n{number}")
    with pytest.raises(Full) as full:
        access.mkdir("one-more")
    assert full.value.status == "Out of CLOSIDs"
    assert world.text("info/last_cmd_status").count("\n") == 3


def test_when_the_kernels_buffer_is_full_no_old_line_is_taken():
    world = World()
    access = world.open().access
    for _ in range(60):
        with pytest.raises(Invalid):
            access.write_cpus("99\n", "cpus_list")
    with pytest.raises(Invalid) as caught:
        access.write_cpus("0\n", "cpus_list")
    assert caught.value.status == ""


def test_waiting_for_the_lock_in_vain_is_busy():
    world = World()
    resctrl = world.open()
    change = Schemata.of({"L3": {0: 1}})
    with world.fs.lock(ROOT, exclusive=True, timeout_s=0.0):
        assert resctrl.schemata(), "one file is read as a whole: nobody has to wait for that"
        with pytest.raises(Locked, match="another program"):
            resctrl.list_groups()
        with pytest.raises(Locked):
            resctrl.apply(GroupRef(), change)
    with world.fs.lock(ROOT, exclusive=False, timeout_s=0.0):
        assert resctrl.list_groups()  # readers do not keep each other out
        with pytest.raises(Busy):
            resctrl.apply(GroupRef(), change)
    assert resctrl.apply(GroupRef(), change).wrote


def test_who_holds_the_lock_is_named():
    host = SimHost([Batch("pi", "/batch/pi")], machine=Machine(1, 2), resctrl=True)
    assert host.resctrl is not None
    resctrl = Resctrl.open(host.fs.raw, ROOT, lock_timeout_s=0.0)
    assert resctrl.access.is_locked() == ""
    assert lock_holders(host.fs.raw, ROOT) == ()
    with foreign_lock(host.fs.root, host.resctrl.directory, pid=4711):
        assert lock_holders(host.fs.raw, ROOT) == (Holder(4711, True, "flock", 65534),)
        assert resctrl.access.is_locked() == "the lock is held by pid 4711 (flock, uid 65534, exclusive)"
        with pytest.raises(Locked, match=r"pid 4711 \(flock, uid 65534"):
            resctrl.list_groups()
        host.fs.root.make("/proc").remove("4711")
        assert "a process that inherited the lock" in resctrl.access.is_locked()
        ignoring = resctrl.patient(None)
        assert ignoring.access.is_locked() == ""
        assert ignoring.apply(GroupRef(), Schemata.of({"L3": {0: 1}})).wrote
        host.fs.root.make("/proc/4711").add("comm", "flock\n")
    assert resctrl.access.is_locked() == ""


def test_a_holders_name_sends_nothing_to_the_terminal():
    host = SimHost([Batch("pi", "/batch/pi")], machine=Machine(1, 2), resctrl=True)
    assert host.resctrl is not None
    with foreign_lock(host.fs.root, host.resctrl.directory, comm="a\x1b[2J\nroot\x9b"):
        (holder,) = lock_holders(host.fs.raw, ROOT)
    assert holder.command == "a?[2J?root?"


def test_the_holder_of_a_real_lock_is_named(tmp_path):
    fs = RealFs()
    with fs.lock(str(tmp_path), exclusive=False, timeout_s=0.0):
        (holder,) = lock_holders(fs, str(tmp_path))
        assert (holder.pid, holder.exclusive, holder.uid) == (os.getpid(), False, os.getuid())
        assert Access(fs, str(tmp_path)).is_locked().endswith("shared)")
    assert lock_holders(fs, str(tmp_path)) == ()
