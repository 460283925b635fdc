"""The party's end of a masked Round 1: which sums it takes part in, and its masked message.

A sum over all parties says what the pool says. Two different sums of one sample say more: over two rosters, the answer
of the party that they differ in; with two weights, the answers of both of two parties. So a party takes part in one sum
per sample.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from gainroute.federation.masking import (
    ENCODING,
    PairwiseMasks,
    load_mask_key,
    log_odds,
    mask_context,
    noise,
    read_public,
    weight_differences,
)
from gainroute.federation.party.settings import PrivacySettings
from gainroute.federation.transport.proto import party_pb2 as pb

__all__ = ["MaskedRoundOne", "MaskingRefusedError", "SampleMemory"]

NONCE_BYTES = 24
MAX_PLAN_BYTES = 1 << 16
PLANS = 64  # kept decoded


class MaskingRefusedError(Exception):
    """Why the party does not take part in a sum; `retry_after` is in seconds, 0 if asking again does not help."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class _Plan:
    digest: bytes
    roster: tuple[str, ...]
    model: str
    weight: float
    eps: float


@dataclass(frozen=True)
class _Admitted:
    """A request that may be answered: its plan, what its masks depend on, and the positions that are withheld."""

    plan: _Plan
    context: bytes
    withheld: list[int]


class SampleMemory:
    """The plan of the sum that each sample was in, for between one and two windows.

    Parameters
    ----------
    window
        Seconds.
    most
        Samples and nonces remembered at most. Beyond it nothing is answered: forgetting would undo the protection.
    clock
        Monotonic seconds.
    """

    def __init__(self, window: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._most, self._clock = window, most, clock
        self._now: dict[str | bytes, bytes] = {}
        self._before: dict[str | bytes, bytes] = {}
        self._since = clock()

    def take(self, plan: bytes, nonce: bytes, ids: Sequence[str]) -> list[int]:
        """Record a request; returns the positions of the ids that were in a sum of another plan."""
        passed = self._clock() - self._since
        if passed >= self._window:
            self._before, self._now = (self._now if passed < 2 * self._window else {}), {}
            self._since += passed
        now, before = self._now, self._before
        if nonce in now or nonce in before:
            raise MaskingRefusedError("its nonce was used before; every request needs a new one")
        if len(now) + len(before) + len(ids) >= self._most:
            left = self._since + self._window - self._clock()
            raise MaskingRefusedError(
                f"it remembers {len(now) + len(before)} samples, and {self._most} at most (privacy.remember): ask "
                f"again in {left:.0f} s",
                max(left, 1.0),
            )
        now[nonce] = plan
        withheld: list[int] = []
        if len({plan, *map(now.get, ids, repeat(plan)), *map(before.get, ids, repeat(plan))}) > 1:
            withheld = [i for i, name in enumerate(ids) if now.get(name, before.get(name, plan)) != plan]
            ids = [name for name in ids if now.get(name, before.get(name, plan)) == plan]
        now.update(zip(ids, repeat(plan), strict=False))
        return withheld


class MaskedRoundOne:
    """Answers Round 1 by masked log-odds.

    Parameters
    ----------
    name
        Of the party.
    settings
        Its `[privacy]`.
    memory
        Used instead of one with the settings' window.
    clock
        Seconds since 1970.
    """

    def __init__(
        self,
        name: str,
        settings: PrivacySettings,
        memory: SampleMemory | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert settings.key is not None  # noqa: S101 (the settings require it)
        peers = {peer: read_public(text, f"privacy.peers.{peer}") for peer, text in settings.peers.items()}
        self._masks = PairwiseMasks(name, load_mask_key(settings.key), peers)
        self._settings, self._clock = settings, clock
        self._memory = memory or SampleMemory(settings.window_seconds, settings.remember)
        self._plans: dict[bytes, _Plan] = {}

    def describe(self) -> pb.Masking:
        """Describe how the party masks, for the handshake."""
        settings = self._settings
        return pb.Masking(
            public_key=self._masks.public,
            peers=self._masks.peers,
            min_roster=settings.min_roster,
            max_weight_share=settings.max_weight_share,
        )

    # ---- which sums ---------------------------------------------------------------------------------

    def admit(self, coordinator: str, request: pb.Request) -> _Admitted:
        """Check and record a request, before anything is computed; raises a `MaskingRefusedError`."""
        plan = self._plans.get(request.mask_plan) or self._read_plan(request.mask_plan)
        if plan.model != request.model:
            raise MaskingRefusedError(f"its plan names the model {plan.model[:80]!r}, not the one requested")
        nonce, half = request.mask_nonce, self._settings.window_seconds / 2
        if len(nonce) != NONCE_BYTES:
            raise MaskingRefusedError(f"its nonce has {len(nonce)} bytes; {NONCE_BYTES} are needed")
        # A nonce is remembered for a window. One that is older, or from the future, could be used again after that.
        age = self._clock() - int.from_bytes(nonce[:8], "little") / 1e6
        if abs(age) > half:
            raise MaskingRefusedError(
                f"its nonce is {age:.0f} s old; {half:.0f} s are allowed either way: set the clocks", retry_after=1.0
            )
        ids = list(request.ids)
        withheld = self._memory.take(plan.digest, nonce, ids)
        context = mask_context(request.mask_plan, nonce, coordinator, request.request_id, ids)
        return _Admitted(plan, context, withheld)

    def _read_plan(self, sent: bytes) -> _Plan:
        if len(sent) > MAX_PLAN_BYTES:
            raise MaskingRefusedError(f"its plan has {len(sent)} bytes; at most {MAX_PLAN_BYTES} are allowed")
        try:
            plan = pb.MaskPlan.FromString(sent)
        except DecodeError:
            raise MaskingRefusedError("its plan cannot be decoded") from None
        own = self._masks.name
        weights = {member.name: member.weight for member in plan.members}
        if len(weights) != len(plan.members) or own not in weights:
            raise MaskingRefusedError("its roster repeats a party, or does not name this one")
        strangers = sorted(set(weights) - set(self._masks.peers) - {own})
        if strangers:
            raise MaskingRefusedError(
                f"its roster names {strangers[0][:80]!r}, whose key is not among privacy.peers: the operators of the "
                "parties exchange keys, not the coordinator"
            )
        settings = self._settings
        wrong = weight_differences(weights, plan.eps, settings.min_roster, settings.max_weight_share)
        if wrong:
            raise MaskingRefusedError("it asks for " + "; ".join(wrong))
        model = next(member.model for member in plan.members if member.name == own)
        read = _Plan(hashlib.sha256(sent).digest(), tuple(weights), model, weights[own], plan.eps)
        if len(self._plans) >= PLANS:
            self._plans.clear()
        self._plans[sent] = read
        return read

    # ---- the message --------------------------------------------------------------------------------

    def respond(
        self,
        admitted: _Admitted,
        request: pb.Request,
        values: npt.NDArray[np.float32],
        missing: npt.NDArray[np.int64],
    ) -> pb.Response:
        """Build the response from the posteriors of the samples that the party has.

        Rows that it lacks or withholds are random. Left out or zero, the sum would be one over fewer parties.
        """
        plan, rows = admitted.plan, len(request.ids)
        odds = log_odds(values, plan.weight, plan.eps)
        blank = sorted({*missing.tolist(), *admitted.withheld})
        if len(missing):
            complete = np.zeros((rows, odds.shape[1]), np.uint32)
            complete[np.delete(np.arange(rows), missing)] = odds
            odds = complete
        masked = self._masks.add_to(odds, plan.roster, admitted.context)
        if blank:
            masked[blank] = noise(len(blank), masked.shape[1])
        response = pb.Response(correlation=request.correlation)
        answer = response.answer
        answer.model = request.model
        answer.missing.extend(missing.tolist())
        answer.withheld.extend(admitted.withheld)
        answer.values.shape.extend(masked.shape)
        answer.values.encoding = ENCODING
        answer.values.data = masked.astype("<u4", copy=False).tobytes()
        return response
