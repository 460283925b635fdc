"""Progress that is passed on."""

from __future__ import annotations

import sys

from gainroute._util.progress import LineProgress, ReportedProgress


def test_every_step_is_reported_and_shown_with_what_the_receiver_adds(capsys):
    states = []

    def report(state):
        states.append(dict(state))
        return "lab 20/s" if state["done"] > 3 else None

    progress = ReportedProgress(report, LineProgress(sys.stderr))
    progress.start("vfl", 5, 2)
    progress.advance("loss 1.5")
    progress.advance("loss 1.4")
    progress.say("a line")
    assert [(s["stage"], s["done"], s["total"], s["note"]) for s in states] == [
        ("vfl", 2, 5, ""), ("vfl", 3, 5, "loss 1.5"), ("vfl", 4, 5, "loss 1.4"),
    ]  # fmt: skip
    shown = [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["vfl 3/5 loss 1.5", "vfl 4/5 loss 1.4; lab 20/s", "a line"]


def test_without_a_place_to_show_it_progress_is_only_reported(capsys):
    progress = ReportedProgress(lambda _: None)
    progress.start("local", 1)
    progress.advance()
    progress.say("a line")
    assert capsys.readouterr() == ("", "")
