"""Links with a delay and a rate between network namespaces."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.delayed_links import BUFFER_SECONDS, NoNamespacesError, _Line, linked_namespaces, measure_link


def test_packets_leave_a_line_one_after_the_other_and_a_full_buffer_drops():
    line = _Line(rate=8000.0)  # 1,000 bytes per second
    assert line.pass_on(10.0, 50) == pytest.approx(10.05)
    assert line.pass_on(10.0, 100) == pytest.approx(10.15), "it waits for the first"
    assert line.pass_on(10.15 - 2 * BUFFER_SECONDS, 1) is None
    assert line.pass_on(11.0, 100) == pytest.approx(11.1), "the line was free, and what was dropped did not use it"


def test_namespaces_are_joined_by_a_slow_link_and_vanish_with_the_relay():
    addresses = ["10.77.0.1", "10.77.0.2"]
    try:
        with linked_namespaces(addresses, 0.02, 100e6) as entered:
            round_trip, rate = measure_link(entered, *addresses)
            assert round_trip >= 0.02
            assert rate <= 100e6
            shown = subprocess.check_output([*entered[addresses[1]], "ip", "-br", "addr"], text=True)
            assert "10.77.0.2/24" in shown
            held = [Path(words[1].removeprefix("--net=")) for words in entered.values()]
            assert all(path.exists() for path in held)
    except NoNamespacesError as error:
        pytest.skip(str(error))
    assert not any(path.exists() for path in held)


def test_a_relay_that_cannot_start_says_why():
    linked = linked_namespaces(["not an address"], 0.02, 100e6)
    with pytest.raises(NoNamespacesError, match="cannot be made here"), linked:
        pass
