"""The label holder fits the router: it has the true labels, and is sent the answers of both routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.errors import InputError
from gainroute.federation.formation.plan import FormationPlan
from gainroute.federation.formation.tasks import Array
from gainroute.routing.absent import calibrated_subsets
from gainroute.routing.artifacts import save
from gainroute.routing.types import IntArray, Provenance
from gainroute.training.prepare import encode_labels, given_labels
from gainroute.training.route_answers import LocalAnswers, RouteAnswers
from gainroute.training.run import fit_router

__all__ = ["HeldOutAnswers"]


TRAIN = "train"


class HeldOutAnswers:
    """The answers of both routes on the held-out samples as they arrive in service, until the router is fitted.

    And Round 1 on the training part, where labels may leave their holder.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[list[Array]]] = {}

    def receive(self, part: str, arrays: list[Array]) -> None:
        """Keep the answers for some rows of the aligned samples: rows, local posteriors (M, N, K).

        After these, of the held-out parts, strong posteriors (N, K), and of the calibration part the masked head's
        answers for `calibrated_subsets`, (S, N).
        """
        rows, local, *others = arrays
        strong, by_subset = others[:1], others[1:]
        counts = [local.shape[1], *map(len, strong), *(answers.shape[-1] for answers in by_subset)]
        if any(count != len(rows) for count in counts):
            raise InputError(f"answers of {', '.join(map(str, counts))} samples for {len(rows)} rows")
        if bool(strong) == (part == TRAIN):
            raise InputError(
                f"answers on part {part[:20]!r}: strong answers are sent of the held-out parts, and only of these"
            )
        if by_subset and len(by_subset[0]) != len(calibrated_subsets(len(local))):
            raise InputError(f"answers of {len(by_subset[0])} subsets of {len(local)} parties")
        self._parts.setdefault(part, []).append(arrays)

    def _take(self, part: str, ids: Array, codes: IntArray) -> RouteAnswers:
        rows, local, strong, *by_subset = zip(*self._parts.pop(part), strict=True)
        chosen = np.concatenate(rows)
        subsets = calibrated_subsets(len(local[0])) if by_subset else []
        found = dict(zip(subsets, np.concatenate(by_subset[0], axis=1), strict=True)) if by_subset else {}
        return RouteAnswers.from_posteriors(
            ids[chosen], codes[chosen], np.concatenate(local, axis=1), np.concatenate(strong), found
        )

    def _take_training(self, codes: IntArray) -> LocalAnswers | None:
        """Round 1 on the training part, if the coordinator has sent it."""
        if TRAIN not in self._parts:
            return None
        rows, local = zip(*self._parts.pop(TRAIN), strict=True)
        return LocalAnswers(codes[np.concatenate(rows)], np.concatenate(local, axis=1))

    def fit_router(
        self,
        ids: Sequence[str],
        codes: IntArray,
        class_names: Sequence[str],
        plan: FormationPlan,
        models: Mapping[str, str],
        path: Path,
        *,
        integers: bool,
    ) -> dict[str, Any]:
        """Fit the router on the calibration part, save it, and return the results on the test part.

        Parameters
        ----------
        ids, codes
            Pseudonyms and true labels of the aligned samples.
        class_names, integers
            Of the labels, and whether they were given as integers.
        plan
            Budget, seed and codec.
        models
            Hashes of all models, by holder.
        path
            Where the router is saved.
        """
        names = np.array(ids)
        held, tested = self._take("calibration", names, codes), self._take("test", names, codes)
        labels = given_labels(class_names, integers=integers)
        router = fit_router(
            held, labels, budget=plan.budget, seed=plan.seed, pooled_only=bool(plan.pooled_only),
            training=self._take_training(codes),
        )  # fmt: skip
        save(router, path, provenance=Provenance(dict(models), plan.codec))
        decision = router.route(tested.local_posteriors)
        answer = router.answer(decision, tested.strong_posterior[decision.escalate])
        return {
            "calibration_samples": len(held),
            "test_samples": len(tested),
            "weak_accuracy": tested.weak_accuracy,
            "strong_accuracy": tested.strong_accuracy,
            "routed_accuracy": float((encode_labels(answer.prediction, class_names) == tested.labels).mean()),
            "escalation_rate": float(np.mean(decision.escalate)),
        }
