"""The budget controller in the service: it decides batch by batch, survives restarts, and reports its state.

A `BudgetControl` belongs to one deployment. It is used in the event loop, in the order in which batches leave Round 1;
only `state` is also called by the decision log's writer, which saves it with the decisions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from gainroute._util.files import plain
from gainroute.control.budget import WINDOW, BudgetController, ControlledDecision
from gainroute.control.token_bucket import TokenBucket
from gainroute.errors import SettingError
from gainroute.federation.coordinator.monitoring.statistics import RingBuffer
from gainroute.federation.coordinator.settings import CapSettings, ControllerSettings
from gainroute.routing.offers import spent_by
from gainroute.routing.router import Router
from gainroute.routing.types import Decision

__all__ = ["STATE", "BudgetControl", "ControlHistory", "control_status", "control_together"]

log = logging.getLogger("gainroute.coordinator")

STATE = "controller"  # name in the log's state table


class ControlHistory:
    """Threshold and rate over time. When the history is full, every other point is dropped and the interval doubled."""

    def __init__(self, points: int = 500, spacing: float = 1.0, clock: Callable[[], float] = time.time) -> None:
        self._most, self._spacing, self._clock = points, spacing, clock
        self._points: list[dict[str, Any]] = []
        self._due = 0.0

    def add(self, threshold: float, rate: Callable[[], float | None]) -> None:
        """Add a point, if the next one is due."""
        now = self._clock()
        if now < self._due:
            return
        if len(self._points) >= self._most:
            self._points = self._points[::2]
            self._spacing *= 2
        self._points.append({"time": now, "threshold": plain(threshold), "rate": rate()})
        self._due = now + self._spacing

    def points(self) -> list[dict[str, Any]]:
        """Oldest first: time (seconds since 1970), threshold, rate of the last 2,000 samples before."""
        return list(self._points)


class BudgetControl:
    """A `BudgetController` for one deployment of the service.

    `sample_bytes` returns the payload of an escalated sample; None while it is not known, and nothing is escalated.
    `before` is the previous controller: its history is continued, and its cap is not refilled. `slot` is that of the
    decision log under which the state is saved.
    """

    def __init__(
        self,
        router: Router,
        identity: str,
        budget: float,
        settings: ControllerSettings,
        sample_bytes: Callable[[], int | None],
        before: BudgetControl | None = None,
        slot: int = 0,
        *,
        partial: bool = False,
    ) -> None:
        self.identity, self.slot = identity, slot
        # A budget below `explore`, such as 0, must be possible at any time.
        explore = min(settings.explore, budget)
        self.controller = BudgetController(
            router, budget, step=settings.step, explore=explore, seed=settings.seed, partial=partial
        )
        self.history: ControlHistory = ControlHistory() if before is None else before.history
        self._wanted = RingBuffer(WINDOW)  # 1 if escalated; with `partial`, the share of the bytes
        self._sample_bytes = sample_bytes
        self.cap = settings.cap
        self._to_attach = settings.cap
        self._cap_state = None if before is None else before._state_of_cap()

    def decide(self, decision: Decision) -> ControlledDecision:
        """Decide on what the router has scored; to be called in the order of the samples."""
        if self._to_attach is not None:
            self._attach_cap(self._to_attach)
        before = self.controller.samples
        decided = self.controller.decide(decision)
        wanted = spent_by(self.controller.router, decided)
        if self.controller.samples - before < len(wanted):  # some were not counted
            wanted = wanted[~(decided.incomplete | np.isnan(decided.score))]
        self._wanted.extend(wanted)
        self.history.add(self.controller.threshold, self.rate)
        return decided

    def rate(self) -> float | None:
        """Share of the last 2,000 samples that were to be escalated, or of their bytes; None before the first."""
        last = self._wanted.last(WINDOW)
        return float(last.mean()) if len(last) else None

    @property
    def samples(self) -> int:
        """Number of samples behind `rate`."""
        return min(self._wanted.total, WINDOW)

    # ---- restart --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """State to save for a restart, as plain JSON."""
        return {"artifact": self.identity, "state": self.controller.state(), "cap": self._state_of_cap()}

    def restore(self, saved: dict[str, Any] | None) -> bool:
        """Restore a saved state; returns False, and logs why, if that is not possible."""
        if saved is None:
            return False
        if saved.get("artifact") != self.identity:
            why = f"the saved state is of router {str(saved.get('artifact'))[:12]}, this one is {self.identity[:12]}"
        else:
            try:
                # The cap has its own settings, and is restored when it is attached.
                self.controller.restore(saved["state"] | {"cap": None})
            except (SettingError, KeyError, TypeError, ValueError) as error:
                why = str(error)
            else:
                self._cap_state = saved.get("cap")
                log.info("the budget controller continues after %d samples", self.controller.samples)
                return True
        log.warning("the budget controller starts afresh: %s", why)
        return False

    # ---- the cap --------------------------------------------------------------------------------

    def _attach_cap(self, given: CapSettings) -> None:
        """Attach the cap; a cap in bytes has to wait until every party has described itself."""
        size = self._sample_bytes() if given.unit == "bytes" else None
        if given.unit == "bytes" and size is None:
            return
        self._to_attach = None
        if size == 0:
            log.warning("controller.cap counts bytes, but precomputed strong answers need none: there is no cap")
            return
        burst = max(given.burst, size or 1.0)
        if burst > given.burst:
            log.warning(
                "controller.cap: burst is %g; it is raised to the cost of one sample, %g %s",
                given.burst, burst, given.unit,
            )  # fmt: skip
        cap = TokenBucket(given.rate, burst, unit=given.unit, size=size, per=given.per)
        if self._cap_state is not None:
            try:
                cap.restore(self._cap_state)
            except (SettingError, KeyError, TypeError, ValueError) as error:
                log.warning("the cap starts afresh: %s", error)
        self.controller.cap = cap

    def _state_of_cap(self) -> dict[str, Any] | None:
        cap = self.controller.cap
        return self._cap_state if cap is None else cap.state()


def control_status(control: BudgetControl | None) -> dict[str, Any]:
    """The state of the budget controller as JSON, for dashboard, status and metrics.

    None means that it is not configured, or that an admin has set a threshold. ``on``: whether a controller decides; if
    not, the only other key is an empty ``history``. ``threshold``: now; "inf" or "-inf" for infinities. ``min_gain``,
    ``protection``: floors under it, or None. ``samples``, ``escalated``, ``explored``, ``capped``: counts since the
    controller started, restarts included. ``window``: the last 2,000 samples since the process started, the share
    escalated (None before the first), and how far from the budget it can be at most. ``bound``: the same for all
    ``samples``, the time-averaged error; 1 before the first. ``history``: at most 500 points, oldest first.
    """
    if control is None:
        return {"on": False, "history": []}
    held, cap, samples = control.controller, control.cap, control.samples
    names = (
        "budget",
        "step",
        "explore",
        "threshold",
        "min_gain",
        "protection",
        "samples",
        "escalated",
        "explored",
        "capped",
    )

    def bound(count: int) -> float:
        return held.bound(count) if count else 1.0

    return {
        "on": True,
        **{name: plain(getattr(held, name)) for name in names},
        "window": {"samples": samples, "rate": control.rate(), "bound": bound(samples)},
        "bound": bound(held.samples),
        "cap": None if cap is None else asdict(cap),
        "history": control.history.points(),
    }


def control_together(control: BudgetControl | None, states: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """What the controllers of all coordinators have decided with the same router and budget, by their saved states.

    ``bound``: how far ``rate`` can be from the budget at most, see `BudgetController.bound`; it grows with ``slots``,
    the number of streams.
    """
    if control is None:
        return None
    held = control.controller
    own = [saved["state"] for saved in states if saved["artifact"] == control.identity]
    alike = [state for state in own if (state["budget"], state["step"]) == (held.budget, held.step)]
    samples, escalated = (sum(state[name] for state in alike) for name in ("samples", "escalated"))
    spent = sum(state.get("spent", state["escalated"]) for state in alike)
    return {
        "slots": len(alike),
        "samples": samples,
        "escalated": escalated,
        "rate": spent / samples if samples else None,
        "bound": min(1.0, len(alike) * held.bound(samples)) if samples else 1.0,
    }
