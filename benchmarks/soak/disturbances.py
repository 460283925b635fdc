"""Carries out a schedule on a federation: two tracks at once, each in a thread of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from benchmarks.soak.federation import Federation, Process
from benchmarks.soak.load import Load
from benchmarks.soak.schedule import CENTRE, Event, Schedule
from benchmarks.soak.seen import Down, Happened

__all__ = ["Disturbances"]

LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 120.0  # until a full disk is noticed (its journal has room for a while), or certificates are used


class Disturbances:
    """The disturbances of a schedule.

    Parameters
    ----------
    federation, load
        What is disturbed, and its clients.
    schedule
        When.
    say
        Called with one line per event.
    """

    def __init__(self, federation: Federation, load: Load, schedule: Schedule, say: Callable[[str], None]) -> None:
        self.happened = Happened()
        self._federation, self._load, self._schedule, self._say = federation, load, schedule, say
        self._stopping = threading.Event()
        self._do = {"kill": self._kill, "freeze": self._freeze, "fill": self._fill, "rotate": self._rotate}

    def run(self, start: float, tell: Callable[[], None], tell_seconds: float) -> None:
        """Carry out everything, at times after `start`; an error of one track ends both. Calls `tell` now and then."""
        with ThreadPoolExecutor(2) as pool:
            tracks = [
                pool.submit(self._track, start, events) for events in (self._schedule.parties, self._schedule.centre)
            ]
            try:
                while not self._ended(tracks, tell_seconds):
                    tell()
            finally:
                self._stopping.set()

    @staticmethod
    def _ended(tracks: Sequence[Future[None]], seconds: float) -> bool:
        done, left = wait(tracks, seconds, FIRST_EXCEPTION)
        for track in done:
            track.result()
        return not left

    def _track(self, start: float, events: Sequence[Event]) -> None:
        for event in events:
            if self._stopping.wait(max(0.0, start + event.at - time.monotonic())):
                return
            self._do[event.kind](event)

    # ---- one disturbance each -------------------------------------------------------------------

    def _process(self, who: str) -> Process:
        return self._federation.coordinator if who == CENTRE else self._federation.parties[who]

    def _kill(self, event: Event) -> None:
        process = self._process(event.who)
        self._say(f"{process.title} (pid {process.pid}) is killed")
        process.kill()
        gone = time.monotonic()
        self._stopping.wait(event.seconds)
        begun = time.monotonic()
        process.begin()
        process.ready()
        down = Down(event.who, gone, begun, time.monotonic())
        self._say(f"{process.title} listens again after {down.back - gone:.1f} s")
        (self.happened.coordinators if event.who == CENTRE else self.happened.parties).append(down)

    def _freeze(self, event: Event) -> None:
        process = self._process(event.who)
        self._say(f"{process.title} (pid {process.pid}) is frozen")
        process.freeze()
        gone = time.monotonic()
        self._stopping.wait(event.seconds)
        begun = time.monotonic()
        process.wake()
        self._say(f"{process.title} runs again after {begun - gone:.1f} s")
        self.happened.frozen.append(Down(event.who, gone, begun, begun))

    def _fill(self, event: Event) -> None:
        disk, pid = self._federation.disk, self._process(event.who).pid
        gone = time.monotonic()
        disk.fill(pid)
        self._say("the disk of the decision log is full")
        noticed = self._until(lambda: any(r.why == "503" and r.at >= gone for r in self._load.refused[-100:]))
        self._stopping.wait(event.seconds)
        begun = time.monotonic()
        disk.make_room(pid)
        told = f"refused after {noticed - gone:.1f} s" if math.isfinite(noticed) else "nothing was refused"
        self._say(f"the disk has room again after {begun - gone:.1f} s; {told}")
        self.happened.full.append(Down(event.who, gone, begun, begun))

    def _rotate(self, event: Event) -> None:
        federation = self._federation
        gone = time.monotonic()
        certificates = federation.rotate(event.who)
        self._say(f"party {event.who} and the coordinator have new certificates")
        back = self._until(lambda: federation.in_use(event.who, certificates))
        told = f"are used after {back - gone:.1f} s" if math.isfinite(back) else "are not used"
        self._say(f"the new certificates of party {event.who} and the coordinator {told}")
        self.happened.rotated.append(Down(event.who, gone, gone, back))

    def _until(self, true: Callable[[], bool]) -> float:
        """Wait until something is true; returns when that was, infinity if it was not within the patience."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up and not self._stopping.wait(LOOK_SECONDS):
            if true():
                return time.monotonic()
        return math.inf
