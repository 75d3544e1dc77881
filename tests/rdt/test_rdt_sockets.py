"""Two applications and two batch jobs, each pair on a socket of its own."""

from __future__ import annotations

from functools import partial

import pytest

from tests.rdt.bed import OWN, Application, Bed, Job

pytestmark = pytest.mark.requires_vm
LEFT = Application("left", "hog0", cpus="0-1")
RIGHT = Application("right", "hog1", cpus="2-3")
HOG0, HOG1 = (
    Job("hog0", cpus="0-1", traffic="4000 8192 1 100"),
    Job("hog1", cpus="2-3", traffic="4000 8192 1 100"),
)


@pytest.fixture
def mounted(bed: Bed) -> Bed:
    bed.mount_if_needed()
    return bed


def test_an_application_leaves_the_other_sockets_batch_alone(mounted: Bed) -> None:
    bed = mounted
    bed.set_up([LEFT, HOG0, HOG1])
    bed.start()
    bed.batch("hog0", "hog1")
    bed.wait_until(lambda: bed.is_narrowed("hog0", "left"), "batch beside the application was not narrowed")
    bed.wait_for_protection("on the left socket", "left")
    assert bed.values(bed.group_of("hog0"))["L3"][0] < 0x7FF
    theirs = bed.values(bed.group_of("hog1"))
    assert theirs["L3"][1] == 0x7FF, "batch on the other socket lost ways"
    assert theirs["MB"][1] == 100, "batch on the other socket lost bandwidth"


def test_two_applications_on_two_sockets(mounted: Bed) -> None:
    bed = mounted
    bed.set_up([LEFT, RIGHT, HOG0, HOG1])
    bed.start()
    bed.batch("hog0", "hog1")
    for job, lra in (("hog0", "left"), ("hog1", "right")):
        bed.wait_until(partial(bed.is_narrowed, job, lra), f"{job} was not narrowed")
    bed.wait_for_protection("on both sockets", "left", "right")
    for job, domain in (("hog0", 0), ("hog1", 1)):
        assert bed.group_of(job).startswith(OWN)
        assert bed.values(bed.group_of(job))["L3"][domain] < 0x7FF, job
    for lra in ("left", "right"):
        masks = bed.values(bed.group_of(lra))
        assert min(masks["MB"].values()) == 100, f"{lra} is throttled itself"
