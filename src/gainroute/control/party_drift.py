"""Detect a party that has changed: it agrees with the others less than in calibration, or is more or less confident.

No labels are needed. Every pair of parties has a sequential test of "they agree at least as much as in calibration",
and every party two of "it is as confident as in calibration". A party is named if its own confidence has changed, or if
it agrees less with more than half of the others. A single party that lies lowers its own agreement with every other,
and leaves that of the others among each other as it was; therefore an honest party is not named because of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from gainroute.control.change_test import BETS, RICHEST
from gainroute.errors import SettingError
from gainroute.routing.party_statistics import PartyStatistics, pairwise_agreement
from gainroute.routing.types import FloatArray

__all__ = ["PartyDrift", "PartyMonitor"]

CHUNK = 128  # samples whose bets are computed at once; their product stays far within the range of a float


@dataclass(frozen=True)
class PartyDrift:
    """One party: recent means and those of the reference, and what was found."""

    agreement: float  # with the others, over the recent samples; NaN before the first
    reference_agreement: float
    confidence: float
    reference_confidence: float
    changed: tuple[str, ...]  # of "agreement" and "confidence"
    e_value: float  # the largest evidence that counts against it
    limit: float  # the e-value at which it is named

    def __str__(self) -> str:
        found = []
        if "agreement" in self.changed:
            found.append(f"agreement with the others {self.agreement:.2f}, not {self.reference_agreement:.2f}")
        if "confidence" in self.changed:
            found.append(f"confidence {self.confidence:.2f}, not {self.reference_confidence:.2f}")
        return "; ".join(found) or "as in calibration"


class PartyMonitor:
    """Monitor the parties by their local posteriors.

    Parameters
    ----------
    parties
        Their number, M.
    reference
        From calibration (`Router.party_statistics_`). None, for routers saved by earlier versions, takes the first
        `window` samples as the reference.
    window
        About how many recent samples the shown means cover.
    horizon, false_alarm
        Over `horizon` samples like those of the reference, an honest party is named with probability at most
        `false_alarm`, if more than half of the parties are honest; with two parties, if both are. Half of it is for the
        means of the reference, taken as normal; the other half holds for any number of samples, by Ville's inequality.
    """

    def __init__(
        self,
        parties: int,
        reference: PartyStatistics | None = None,
        *,
        window: int = 1000,
        horizon: int = 10_000,
        false_alarm: float = 0.01,
    ) -> None:
        self.parties, self.window, self.horizon = parties, int(window), int(horizon)
        self._given = reference
        self._first, self._second = np.triu_indices(parties, 1)
        tests = len(self._first) + 2 * parties
        self._level = false_alarm / 2 / max(tests, 1)  # half for the reference, half for the tests
        self.limit = 1 / self._level
        self._z = NormalDist().inv_cdf(1 - self._level)
        self.reset()

    def reset(self) -> None:
        """Forget everything, for example after an alarm that was resolved."""
        self.reference = self._given
        self.samples = 0
        pairs, m, width = len(self._first), self.parties, len(BETS)
        self._learned: list[FloatArray] = []
        self._recent = np.zeros(1 + pairs + m)  # weight, agreement of pairs, confidence
        self._money = np.zeros((pairs + 2 * m, width))
        self._evidence = np.zeros(pairs + 2 * m)  # the largest so far

    def observe(self, local: FloatArray) -> None:
        """Add local posteriors, (M, N, K), in the order of the answers; samples that lack a party are left out."""
        use = ~np.isnan(local).any(axis=(0, 2))
        there = local if use.all() else local[:, use]
        if self.parties < 2 or not there.shape[1]:
            return
        agreement = pairwise_agreement(there)[self._first, self._second]
        confidence = np.clip(there.max(axis=2), 0.0, 1.0)
        seen = np.vstack([agreement, confidence]).astype(np.float64)  # (pairs + M, N)
        self.samples += seen.shape[1]
        if self.reference is None:
            self._learn(seen)
            return
        fade = (1 - 1 / self.window) ** np.arange(seen.shape[1] - 1, -1, -1)
        added = np.concatenate([[fade.sum()], seen @ fade])
        self._recent = self._recent * (1 - 1 / self.window) ** seen.shape[1] + added
        self._bet(seen, self.reference)

    def _learn(self, seen: FloatArray) -> None:
        """Take the first `window` samples as the reference."""
        self._learned.append(seen)
        if sum(part.shape[1] for part in self._learned) >= self.window:
            seen, pairs, m = np.hstack(self._learned), len(self._first), self.parties
            found = []
            for values in (seen.mean(axis=1), seen.std(axis=1) / math.sqrt(self.samples)):
                agreement = np.ones((m, m))
                agreement[self._first, self._second] = agreement[self._second, self._first] = values[:pairs]
                found += [agreement, values[pairs:]]
            mean, confidence, error, confidence_error = found
            self.reference = PartyStatistics(mean, error, confidence, confidence_error, float(self.samples))
            self._learned = []

    def _bet(self, seen: FloatArray, reference: PartyStatistics) -> None:
        pairs = len(self._first)
        at = self._first, self._second
        centre = np.concatenate([reference.agreement[at], reference.confidence])[:, None]
        error = np.concatenate([reference.agreement_error[at], reference.confidence_error])[:, None]
        slack = self._z * error
        lower = np.clip(seen - (centre - slack), -1, 1)  # agreement and confidence: mean ≥ 0 unless it has fallen
        upper = np.clip(centre[pairs:] + slack[pairs:] - seen[pairs:], -1, 1)
        values = np.vstack([lower, upper])
        bets = np.array(BETS)
        for first in range(0, values.shape[1], CHUNK):
            # n steps of R ← (R + 1)·f at once: with P the product of the f so far, R = P·(R₀ + Σ 1/P before).
            factors = 1 - values[:, first : first + CHUNK, None] * bets
            product = np.cumprod(factors, axis=1)
            before = 1 + (1 / product[:, :-1]).sum(axis=1)
            with np.errstate(over="ignore"):
                self._money = np.minimum(product[:, -1] * (self._money + before), RICHEST)
            self._evidence = np.maximum(self._evidence, self._money.mean(axis=1) / self.horizon)

    # ---- what comes out -------------------------------------------------------------------------

    def report(self) -> list[PartyDrift]:
        """What is known of every party now; empty until there is a reference."""
        if self.reference is None or self.parties < 2:
            return []
        m, pairs = self.parties, len(self._first)
        weight = self._recent[0]
        recent = self._recent[1:] / weight if weight else np.full(pairs + m, math.nan)
        agreement, evidence = np.zeros((m, m)), np.zeros((m, m))
        for table, values in ((agreement, recent), (evidence, self._evidence)):
            table[self._first, self._second] = table[self._second, self._first] = values[:pairs]
        others = ~np.eye(m, dtype=bool)
        # Of M − 1 others, all but `spared` must have lost agreement: these cannot all be dishonest.
        spared = max(1, (m - 1) // 2) - 1
        found = []
        for i in range(m):
            against = float(np.sort(evidence[i, others[i]])[spared])
            own = float(max(self._evidence[pairs + i], self._evidence[pairs + m + i]))
            changed = [name for name, e in (("agreement", against), ("confidence", own)) if e >= self.limit]
            found.append(
                PartyDrift(
                    float(agreement[i, others[i]].mean()), float(self.reference.agreement[i, others[i]].mean()),
                    float(recent[pairs + i]), float(self.reference.confidence[i]), tuple(changed),
                    max(against, own), self.limit,
                )
            )  # fmt: skip
        return found

    def state(self) -> dict[str, Any]:
        """Everything that must survive a restart, as plain JSON."""
        learned = None
        if self.reference is not None and self._given is None:
            learned = {name: np.asarray(value).tolist() for name, value in vars(self.reference).items()}
        return {
            "parties": self.parties,
            "samples": self.samples if self.reference is not None else 0,
            "reference": learned,
            "recent": self._recent.tolist(),
            "money": self._money.tolist(),
            "evidence": self._evidence.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if state["parties"] != self.parties:
            raise SettingError(f"the state is of {state['parties']} parties, {self.parties} are needed")
        if self._given is None and state["reference"] is not None:
            saved: dict[str, Any] = {name: np.array(value) for name, value in state["reference"].items()}
            self.reference = PartyStatistics(**{**saved, "samples": float(saved["samples"])})
        self.samples = int(state["samples"])
        for name in ("recent", "money", "evidence"):
            setattr(self, f"_{name}", np.array(state[name]).reshape(getattr(self, f"_{name}").shape))
