"""Algorithm 1: two-round inference, as pure steps that a synchronous and an asynchronous driver share.

Read this module first.

    round_one    the parties' posteriors → pooled, scored, decided
    round_two    the embeddings of the escalated samples → fused → the combined answer of both routes

`predict_two_round` runs them over parties in process, `predict_two_round_async` over parties behind a network; the
coordinator takes the same steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gainroute.errors import PosteriorError, SettingError, ShapeError
from gainroute.routing.payload import embedding_bytes, round_trip, row_bytes
from gainroute.routing.types import Answer, ArrayLike, BoolArray, Decision, FloatArray, IntArray, LabelArray

__all__ = [
    "AsyncParty",
    "Decider",
    "Fuse",
    "Party",
    "Prediction",
    "cascade",
    "predict_two_round",
    "predict_two_round_async",
    "round_one",
    "round_two",
    "spread",
    "whom_to_ask",
]

# Embeddings of all parties → answers. An attribute `masked`, (embeddings, present (M,)) → answers, makes it accept
# absent parties, whose embeddings are zeros, or have no columns.
Fuse = Callable[[list[npt.NDArray[Any]]], ArrayLike]


@runtime_checkable
class Party(Protocol):
    """An organisation that holds a view, in process.

    It serves posteriors and embeddings only; nothing here trains it. A sample that the party lacks is a row of NaN.
    """

    def posteriors(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 1: the local posterior of each sample, (N, K)."""
        ...

    def embeddings(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 2: the embedding of each sample, (N, d); called for escalated samples only."""
        ...


@runtime_checkable
class AsyncParty(Protocol):
    """A party whose answers are awaited, for example over a network."""

    async def posteriors(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 1: the local posterior of each sample, (N, K)."""
        ...

    async def embeddings(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 2: the embedding of each sample, (N, d); called for escalated samples only."""
        ...


@runtime_checkable
class Decider(Protocol):
    """What two-round inference and the coordinator ask for: `Router` and `BudgetController` are deciders."""

    def route(
        self,
        local_posteriors: Any,
        *,
        weak_prediction: ArrayLike | None = None,
        present: ArrayLike | None = None,
        checked: bool = False,
    ) -> Decision:
        """Decide which samples to escalate; see `Router.route`."""
        ...

    def answer(self, decision: Decision, strong: ArrayLike | None) -> Answer:
        """Combine the answers of both routes; see `Router.answer`."""
        ...


@dataclass(frozen=True, eq=False)
class Prediction:
    """The result of two-round inference.

    Attributes
    ----------
    prediction : (N,)
        The answer given: ŷ_VFL where escalated, ŷ_loc elsewhere.
    probabilities : (N, K)
        The posterior of the route that answered.
    escalated : (N,) bool
        True where the strong route answered.
    score : (N,)
        The expected gain, or the score of another router.
    bytes : (N,)
        Payload bytes that the parties sent for each sample, both rounds together.
    """

    prediction: LabelArray
    probabilities: FloatArray
    escalated: BoolArray
    score: FloatArray
    bytes: IntArray


def predict_two_round(
    parties: Sequence[Party], fuse: Fuse, router: Decider, ids: Sequence[Any], *, codec: str | None = None
) -> Prediction:
    """Answer samples in two rounds, requesting embeddings of the escalated samples only (Algorithm 1).

    Parameters
    ----------
    parties
        One `Party` per view, in the order the router was fitted with.
    fuse
        The server's fusion model: a list of M arrays (E, dᵢ) of embeddings → (E, K) posteriors or (E,) predictions.
        With a router for absent parties (`gainroute.fit_subsets`) it needs a method ``masked(embeddings, present)``,
        in which `present` (M,) says whose embeddings to use.
    router
        A fitted router, or a `BudgetController` around one.
    ids
        The samples to answer.
    codec
        "float32", "float16" or "int8": embeddings are encoded and decoded as a transport does. None passes them on.
    """
    sent = [np.asarray(party.posteriors(ids)) for party in parties]
    decision = round_one(router, sent)
    ask, wanted = whom_to_ask(decision), _wanted_ids(decision, ids, len(parties))
    embeddings = [np.asarray(party.embeddings(mine)) for party, mine in zip(parties, wanted, strict=True) if mine]
    if codec is not None:
        embeddings = [round_trip(embedding, codec) for embedding in embeddings]
    embeddings = spread(embeddings, ask)
    answer = round_two(router, decision, embeddings, fuse, ask)
    return _prediction(decision, answer, sent, embeddings, codec, ask)


async def predict_two_round_async(
    parties: Sequence[AsyncParty], fuse: Fuse, router: Decider, ids: Sequence[Any]
) -> Prediction:
    """`predict_two_round` with all parties asked concurrently."""
    sent = await _gather([party.posteriors(ids) for party in parties])
    decision = round_one(router, sent)
    ask, wanted = whom_to_ask(decision), _wanted_ids(decision, ids, len(parties))
    asked = [party.embeddings(mine) for party, mine in zip(parties, wanted, strict=True) if mine]
    embeddings = spread(await _gather(asked), ask)
    answer = round_two(router, decision, embeddings, fuse, ask)
    return _prediction(decision, answer, sent, embeddings, ask=ask)


# ---- the pure steps ---------------------------------------------------------------------------------


def round_one(
    router: Decider, posteriors: Sequence[npt.NDArray[Any]] | npt.NDArray[Any], *, checked: bool = False
) -> Decision:
    """Pool, score and decide on what the parties sent, M arrays (N, K) or (M, N, K).

    A row of NaN means that the party lacks the sample; `checked` rows are known to be posteriors, or all NaN.
    """
    local = posteriors if isinstance(posteriors, np.ndarray) else _stacked(posteriors)
    if local.dtype.kind != "f" or not np.isnan(np.minimum.reduce(local, axis=None, initial=0)):
        return router.route(local, checked=checked)
    blank = np.isnan(local)
    present = ~blank.all(axis=-1)
    mixed = blank.any(axis=-1) & present
    if mixed.any():
        party, row = (int(i) for i in np.argwhere(mixed)[0])
        raise PosteriorError(
            f"party {party}, row {row} mixes NaN with numbers; a sample it lacks is a whole row of NaN"
        )
    return router.route(local, present=present, checked=checked)


def _stacked(posteriors: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shapes = {p.shape for p in posteriors}
    if len(shapes) != 1:
        raise ShapeError(
            f"the parties' posteriors have shapes {sorted(map(str, shapes))}; all must answer the same samples and "
            "classes"
        )
    return np.array(posteriors)


def whom_to_ask(decision: Decision) -> BoolArray | None:
    """Which parties to ask for the embeddings of the escalated samples, (M, E); None for all of them."""
    if decision.ask is not None:
        ask: BoolArray = decision.ask[:, decision.escalate]
    elif decision.subset is not None:
        ask = ~np.isnan(decision.local[:, decision.escalate, 0])
    else:
        return None
    return None if ask.all() else ask


def spread(embeddings: Sequence[npt.NDArray[Any]], ask: BoolArray | None) -> list[npt.NDArray[Any]]:
    """Embeddings of the parties that were asked, each for its own samples, with a row for every escalated sample.

    Where a party was not asked, the row is zero; one that was not asked at all has no columns.
    """
    if ask is None:
        return list(embeddings)
    given, found = iter(embeddings), []
    for rows in ask:
        sent = next(given) if rows.any() else np.empty((0, 0), np.float32)
        whole = np.zeros((len(rows), *sent.shape[1:]), sent.dtype)
        whole[rows] = sent
        found.append(whole)
    return found


def round_two(
    router: Decider,
    decision: Decision,
    embeddings: Sequence[npt.NDArray[Any]],
    fuse: Fuse,
    ask: BoolArray | None = None,
) -> Answer:
    """Fuse the embeddings of the escalated samples, and combine the answers of both routes.

    `ask` says which parties were asked, (M, E), if not all; then `fuse` has to accept absent parties.
    """
    escalated = int(decision.escalate.sum())
    if not escalated:
        return router.answer(decision, None)
    for i, e in enumerate(embeddings):
        if e.ndim != 2 or len(e) != escalated:
            raise ShapeError(
                f"party {i} sent embeddings of shape {e.shape} for {escalated} escalated samples; ({escalated}, d) is "
                "needed"
            )
    return router.answer(decision, fuse(list(embeddings)) if ask is None else _fuse_present(fuse, embeddings, ask))


def _fuse_present(fuse: Fuse, embeddings: Sequence[npt.NDArray[Any]], ask: BoolArray) -> ArrayLike:
    """Fuse samples of different parties: those of the same parties together."""
    masked = getattr(fuse, "masked", None)
    if masked is None:
        raise SettingError(
            "the fusion has no masked(embeddings, present), by which it would accept absent parties; use one that has, "
            "or a router without subset_routers_"
        )
    sets, which = np.unique(ask, axis=1, return_inverse=True)
    which = which.ravel()
    parts: list[npt.NDArray[Any]] = []
    for number, present in enumerate(sets.T):
        part = [
            e[which == number] if there else np.zeros_like(e[which == number])
            for e, there in zip(embeddings, present, strict=True)
        ]
        parts.append(np.asarray(fuse(part) if present.all() else masked(part, present)))
    answers = np.empty((len(which), *parts[0].shape[1:]), np.result_type(*parts))
    for number, given in enumerate(parts):
        answers[which == number] = given
    return answers


# ---- one small model, one big model -----------------------------------------------------------------


def cascade(
    weak: Callable[[Any], ArrayLike], strong: Callable[[Any], ArrayLike], router: Decider
) -> Callable[[Any], Prediction]:
    """Route between one weak and one strong model, without parties or a network.

    Parameters
    ----------
    weak
        Inputs → (N, K) posteriors; called on all inputs.
    strong
        Inputs → (E, K) posteriors or (E,) predictions; called on the escalated inputs only, if there are any.
    router
        Fitted on (N, K) posteriors of `weak`, labels, and predictions of `strong` for held-out samples.

    Returns
    -------
    callable
        Inputs → `Prediction`. Inputs may be an array, a list, or a data frame.

    Examples
    --------
    >>> import numpy as np
    >>> from gainroute import ExpectedGainRouter
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=400)
    >>> weak = lambda x: np.column_stack([np.full(len(x), 0.5) - x / 10, np.full(len(x), 0.5) + x / 10])
    >>> strong = lambda x: (np.asarray(x) > 0).astype(int)
    >>> labels = (x + rng.normal(scale=0.1, size=400) > 0).astype(int)
    >>> router = ExpectedGainRouter(budget=0.1).fit(weak(x), labels, strong(x))
    >>> answered = cascade(weak, strong, router)(x)
    >>> bool(0.05 < answered.escalated.mean() < 0.15)
    True
    """

    def answer(inputs: Any) -> Prediction:
        posteriors = np.asarray(weak(inputs))
        decision = router.route(posteriors)
        rows = np.flatnonzero(decision.escalate)
        given = strong(_take(inputs, rows)) if len(rows) else None
        combined = router.answer(decision, given)
        return _prediction(decision, combined, [posteriors], [])

    return answer


def _take(inputs: Any, rows: IntArray) -> Any:
    if hasattr(inputs, "iloc"):
        return inputs.iloc[rows]
    if isinstance(inputs, (list, tuple)):
        return [inputs[i] for i in rows]
    return inputs[rows]


def _wanted_ids(decision: Decision, ids: Sequence[Any], parties: int) -> list[list[Any]]:
    """Ids of the samples whose embeddings each party is asked for."""
    rows, ask = np.flatnonzero(decision.escalate), whom_to_ask(decision)
    return [[ids[i] for i in (rows if ask is None else rows[ask[party]]).tolist()] for party in range(parties)]


async def _gather(calls: Sequence[Awaitable[ArrayLike]]) -> list[npt.NDArray[Any]]:
    return [np.asarray(a) for a in await asyncio.gather(*calls)]


def _prediction(
    decision: Decision,
    answer: Answer,
    sent: Sequence[npt.NDArray[Any]],
    embeddings: Sequence[npt.NDArray[Any]],
    codec: str | None = None,
    ask: BoolArray | None = None,
) -> Prediction:
    present = np.stack([~np.isnan(p).all(axis=-1) for p in sent])
    size = present.T @ np.array([row_bytes(p.shape[-1], p.dtype) for p in sent], dtype=np.int64)
    each = [
        row_bytes(e.shape[1], e.dtype) if codec is None else embedding_bytes([e.shape[1]], codec) for e in embeddings
    ]
    size[decision.escalate] += sum(each) if ask is None else np.array(each, dtype=np.int64) @ ask
    return Prediction(answer.prediction, answer.probabilities, answer.escalated, decision.score, size)
