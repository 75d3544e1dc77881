"""sysbench's output, as the lab's script makes it print every second."""

from __future__ import annotations

import pytest

from tools.lab.latency import Histogram
from tools.lab.load import Second, SysbenchReport, steady, warm_up

OUTPUT = """\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Running the test with following options:
Number of threads: 4

Threads started!

second 1.000 interval 1.002241 events 3 errors 0
       value  ------------- distribution ------------- count
       0.448 |********************                     1
       1.250 |**************************************** 2
end
second 2.000 interval 0.998501 events 4 errors 1
       value  ------------- distribution ------------- count
       0.448 |*************                            1
       1.250 |**************************************** 3
       9.056 |**************************************** 3
end
second 3.001 interval 1.000900 events 0 errors 0
       value  ------------- distribution ------------- count
       0.448 |*************                            1
       1.250 |**************************************** 3
       9.056 |**************************************** 3
end
"""


def feed(text, times):
    report, moments = SysbenchReport(), iter(times)
    records = []
    for line in text.splitlines(keepends=True):
        record = report.feed(line, next(moments) if line.startswith("end") else 0.0)
        if record is not None:
            records.append(record)
    return records


def test_each_second_has_its_own_latencies_although_the_output_is_cumulative():
    first, second, third = feed(OUTPUT, [101.0, 102.0, 103.0])
    assert dict(first.latency.counts) == {0.448: 1, 1.25: 2}
    assert dict(second.latency.counts) == {1.25: 1, 9.056: 3}
    assert third.latency.total == 0
    assert third.latency.percentile(95) is None
    assert (first.events, second.events, second.errors) == (3, 4, 1)
    assert second.rate == pytest.approx(4 / 0.998501)


def test_time_comes_from_sysbench_so_that_late_reading_does_not_move_it():
    records = feed(OUTPUT, [101.0, 102.7, 103.001])
    assert [record.at_s for record in records] == pytest.approx([101.0, 102.0, 103.001])


def test_an_earlier_start_is_believed_once_a_line_was_read_in_time():
    records = feed(OUTPUT, [101.4, 102.1, 103.001])
    assert [record.at_s for record in records] == pytest.approx([101.4, 102.1, 103.001])


def test_output_that_is_no_report_gives_nothing():
    assert feed("FATAL: unable to connect to MySQL server\nend\n 1.0 |** 3\n", [1.0]) == []


def test_the_ends_of_events_are_on_the_clock_of_the_records():
    text = (
        "second 1.000 interval 1.0 events 2 errors 0\nclient 0 at 0.250000\nclient 1 at 0.900000\n250.0 | 2\nend\n"
        "second 2.000 interval 1.0 events 0 errors 0\n250.0 | 2\nend\n"
    )
    first, second = feed(text, [101.0, 102.0])
    assert first.ends == ((0, 100.25), (1, 100.9))
    assert second.ends == ()


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([100.0] * 3, False),
        ([100.0] * 4, True),
        ([100.0, 100.0, 120.0, 120.0], False),
        ([0.0, 50.0, 100.0, 100.0], False),
        ([0.0, 50.0, 100.0, 100.0, 102.0, 101.0], True),
        ([100.0, 100.0, 60.0, 60.0], True),
    ],
)
def test_a_rate_is_steady_when_it_rises_no_longer(rates, expected):
    assert steady(rates, span=2, rise=0.03) is expected


class Rising:
    """A load whose rate rises for some seconds."""

    def __init__(self, seconds):
        self._seconds, self.stopped = seconds, False

    def __iter__(self):
        number = 0
        while True:
            number += 1
            yield Second(float(number), 1.0, 1000 * min(number, self._seconds), 0, Histogram())

    def stop(self):
        self.stopped = True


def test_a_load_warms_up_until_its_rate_is_steady_but_not_forever():
    compiled, endless = Rising(20), Rising(10**6)
    assert len(warm_up(compiled, 120.0)) == 33  # a window of 8 s that exceeds the one before by at most 3 %
    assert len(warm_up(endless, 60.0)) == 60
    assert compiled.stopped
    assert endless.stopped
