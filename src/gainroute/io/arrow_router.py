"""Routing from Arrow table to Arrow table: what `gainroute route` does with each piece of a file, for any engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gainroute.errors import DataError, InputError, MissingExtraError
from gainroute.io.decisions import check_columns, decision_table
from gainroute.io.posterior_columns import as_labels, holds_posteriors, null_error, read_known, read_parties
from gainroute.io.posteriors import Outcomes, for_router
from gainroute.io.tables import ColumnTable
from gainroute.routing.decide import Turns
from gainroute.routing.inputs import as_local_posteriors
from gainroute.routing.pipeline import block_rows
from gainroute.routing.router import Router
from gainroute.routing.types import Decision

__all__ = ["ArrowRouter"]


class ArrowRouter:
    """A router as a function from Arrow data to Arrow data, one row per sample, for engines that run on many machines.

    It is called with a ``pyarrow.Table`` or ``RecordBatch`` and returns the same kind, with the rows in the same order.
    It can be pickled. Columns are those of a Parquet file that `gainroute route` reads: ``posterior_<party>`` for each
    party, or ``posterior_<party>_<class>``; null where a party is absent; ``weak_prediction`` if the router was fitted
    with one. Other columns are ignored. The result has the columns that `gainroute route` writes; ``id`` is among them
    if it is in the input. Its schema depends on the router and the type of ``id`` only.

    What a row gets does not depend on how rows are grouped, but for rounding (the last digits of a double), and for
    samples whose score equals the threshold: equal ones among them take turns within one call.

    Parameters
    ----------
    router
        A fitted router.
    class_names
        Classes in the order of the posteriors' columns, if the columns do not name them.
    columns
        Which of ``score``, ``weak_prediction``, ``pooled``, ``calibrated`` and ``threshold`` to return, by default all;
        ``escalate`` and ``incomplete`` always are.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa, gainroute as gr
    >>> posteriors = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.6, 0.4]] * 10)
    >>> router = gr.ConfidenceRouter(0.5).fit(posteriors, [0, 1, 1, 1] * 10, [0, 1, 1, 1] * 10)
    >>> route = gr.ArrowRouter(router, columns=["weak_prediction"])
    >>> route(pa.table({"id": ["a", "b"], "posterior_bank": [[0.9, 0.1], [0.45, 0.55]]})).to_pydict()
    {'id': ['a', 'b'], 'escalate': [False, True], 'weak_prediction': [0, 1], 'incomplete': [False, False]}
    """

    def __init__(
        self, router: Router, *, class_names: Sequence[Any] | None = None, columns: Collection[str] | None = None
    ) -> None:
        router._check_fitted()
        self.router = router
        self.class_names = None if class_names is None else np.asarray(class_names)
        self.columns = check_columns(columns)

    def __call__(self, batch: Any) -> Any:
        """Route a ``pyarrow.Table`` or ``RecordBatch``."""
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtraError("routing Arrow data", "parquet") from None
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if not isinstance(table, pa.Table):
            raise InputError(
                f"a {type(batch).__name__} was passed; a pyarrow.Table or RecordBatch is needed: convert it, or have "
                'the engine do so, such as batch_format="pyarrow" with Ray Data'
            )
        routed = self._route_piece(table, "the batch")
        if table is batch:
            return routed
        return pa.RecordBatch.from_arrays([c.combine_chunks() for c in routed.columns], schema=routed.schema)

    @property
    def _block_rows(self) -> int:
        """Rows that are routed at a time. Pieces of this length give the same result as the whole, to the last bit."""
        return block_rows(self._shape[1])

    def _needs(self, column: str) -> bool:
        """Whether a column of the input is read."""
        own = self.router.own_weak_prediction_ and column == "weak_prediction"
        return column == "id" or own or holds_posteriors(column)

    def _party_names(self, schema: Any, source: str) -> tuple[str, ...]:
        """Names of the parties, in the order of their columns; raises unless the schema fits the router."""
        outcomes = self._read(ColumnTable.from_arrow(schema.empty_table(), source))
        m, _, k = outcomes.local_posteriors.shape
        name = f"{source}: local_posteriors"
        as_local_posteriors(np.zeros((m, 1, k)), parties=self._shape[0], classes=self._shape[1], name=name)
        if self.router.own_weak_prediction_:
            outcomes.require("weak_prediction")
        outcomes.in_labels(self.router.classes, self.router.n_classes_)
        return outcomes.party_names

    def _route_piece(
        self, table: Any, source: str, first_row: int = 0, *, turns: Turns | None = None, numbered: bool = False
    ) -> Any:
        """Route the rows of a file, a ``pyarrow.Table``, from `first_row` on.

        `source` names the file in messages, `turns` is that of `Router.route`, and `numbered` makes row numbers the ids
        where there are none.
        """
        import pyarrow as pa

        columns = ColumnTable.from_arrow(table, source, first_row)
        ids = _ids(columns)
        if ids is None and numbered:
            ids = pa.array(np.arange(first_row, first_row + len(table)))
        if len(table):
            known, weak = for_router(self.router, self._read(columns), first_row)
            decision = self.router.route(
                known.local_posteriors, weak_prediction=weak, present=known.present, checked=True, turns=turns
            )
        else:
            self._party_names(table.schema, source)
            decision = self._no_decision()
        names = self.router.classes
        labels = pa.int64() if names is None else pa.array(names.tolist()).type
        return decision_table(decision, self.columns, labels, ids)

    # ---- inside ---------------------------------------------------------------------------------

    @property
    def _shape(self) -> tuple[int, int]:
        return self.router.n_parties_, self.router.n_classes_ + self.router.extra_columns

    def _read(self, table: ColumnTable) -> Outcomes:
        wanted = {name: column for name, column in table.columns.items() if name != "id" and self._needs(name)}
        columns = replace(table, columns=wanted)
        parties = read_parties(columns, self.class_names, self._shape)
        outcomes = Outcomes(**parties, **read_known(columns), source=table.source)
        self._refuse_ambiguous(outcomes)
        return outcomes

    def _refuse_ambiguous(self, outcomes: Outcomes) -> None:
        """Refuse integers that could be class names or column numbers: a piece of a table cannot tell which."""
        weak, names = outcomes.weak_prediction, outcomes.class_names
        names = self.router.classes if names is None else names
        if weak is None or names is None or weak.dtype.kind not in "iuf" or names.dtype.kind in "iuf":
            return
        texts = [str(name) for name in names.tolist()]
        if texts != [str(i) for i in range(len(texts))] and all(t.removeprefix("-").isdecimal() for t in texts):
            raise DataError(
                f"{outcomes.source}: weak_prediction holds integers that could be class names ({', '.join(texts[:6])}) "
                f"or column numbers 0 … {len(texts) - 1}; write them as text"
            )

    def _no_decision(self) -> Decision:
        none, flags, blank = np.zeros(0), np.zeros(0, dtype=bool), np.zeros((0, self.router.n_classes_))
        weak = self.router._labels.decode(none.astype(np.int64))
        return Decision(flags, none, weak, blank, blank, flags, self.router.threshold_, blank[None])


def _ids(table: ColumnTable) -> Any:
    """The column `id` as `gainroute route` writes it: 64-bit numbers and texts; dates and other objects become text."""
    import pyarrow as pa
    import pyarrow.types as kinds

    column = table.columns.get("id")
    if column is None:
        return None
    if column.null_count:
        empty = np.flatnonzero(column.is_null().to_numpy())
        raise null_error(table, "id", len(empty), int(empty[0]))
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if kinds.is_boolean(kind) or kinds.is_uint64(kind):
        return column
    if kinds.is_integer(kind) or kinds.is_floating(kind):
        return column.cast(pa.int64() if kinds.is_integer(kind) else pa.float64())
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return column.cast(pa.string())
    binary = kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind)
    return pa.array(as_labels(column.to_pylist()).tolist(), type=pa.binary() if binary else pa.string())
