"""A cascade as a scikit-learn classifier. scikit-learn is imported when it is used, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute._util.parameters import Settings
from gainroute.errors import InputError, LabelError, MissingExtraError, SettingError, TooFewSamplesError
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import Answer, ArrayLike, BoolArray, Decision, FloatArray, IntArray, LabelArray

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CascadeClassifier"]


class CascadeClassifier(Settings):
    """A small and a big classifier, and a router that calls the big one where it is expected to help.

    It follows scikit-learn's conventions: clones, pipelines and `GridSearchCV` work. `fit` sets a part of its samples
    aside, fits both classifiers on the rest, and the router on the part set aside.

    Parameters
    ----------
    small
        A classifier with `predict_proba`; called for all samples.
    big
        A classifier; called for the escalated samples only. Its probabilities are used if it has `predict_proba`.
    router
        An unfitted router, `ExpectedGainRouter()` by default: its budget is the share of samples for which `big` may be
        called. A utility has its rows and columns in the order of `classes_`, and the router's `classes` are replaced
        by them.
    calibration_size
        Share of the samples, in (0, 1), or their number, that the router is fitted on. Each class gives its share, but
        at least one sample stays to train on.
    random_state
        Seed of the split, as in scikit-learn.

    Attributes
    ----------
    classes_ : (K,)
        The labels, in the order of the columns of `predict_proba`.
    small_, big_, router_
        The fitted clones.
    calibration_rows_ : (n,)
        Rows of `X` that the router was fitted on, and neither classifier.
    escalated_ : (N,) bool
        Where the last call of `predict` or `predict_proba` answered with `big`. `route` returns the same for any
        samples without calling `big`, and does not depend on earlier calls.
    n_features_in_, feature_names_in_
        Those of `small_`, if it has them.

    Examples
    --------
    >>> import gainroute as gr
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_digits(return_X_y=True)
    >>> small, big = GaussianNB(var_smoothing=1e-2), RandomForestClassifier(50, random_state=0)
    >>> cascade = gr.CascadeClassifier(small, big, gr.ExpectedGainRouter(0.2), random_state=0).fit(X[:1200], y[:1200])
    >>> bool(cascade.score(X[1200:], y[1200:]) > cascade.small_.score(X[1200:], y[1200:]))
    True
    >>> bool(cascade.escalated_.mean() < 0.4)
    True
    """

    # Not part of what was fitted: predict must leave the estimator's __dict__ as it was.
    __slots__ = ("_escalated",)

    def __init__(
        self,
        small: Any,
        big: Any,
        router: Router | None = None,
        *,
        calibration_size: float = 0.25,
        random_state: Any = None,
    ) -> None:
        self.small = small
        self.big = big
        self.router = router
        self.calibration_size = calibration_size
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Split the samples, fit clones of both classifiers on one part, and the router on the other.

        Parameters
        ----------
        X : (N, …)
            Whatever both classifiers take: an array, a data frame, a sparse matrix, a list of texts.
        y : (N,)
            Labels of any type.
        sample_weight : (N,), optional
            Passed to both classifiers, or to the last step of a pipeline, and to the router: budget and expected gain
            are then those of the weighted samples. The split into two parts does not depend on it.
        """
        try:
            from sklearn.base import clone
            from sklearn.utils import _safe_indexing, column_or_1d, indexable
            from sklearn.utils.multiclass import check_classification_targets
            from sklearn.utils.validation import _check_sample_weight
        except ImportError:
            raise MissingExtraError("CascadeClassifier", "sklearn") from None

        if y is None:
            raise InputError("CascadeClassifier requires y to be passed, but the target y is None")
        if not hasattr(self.small, "predict_proba"):
            raise SettingError(
                f"small is {self.small!r}, which has no predict_proba; the router needs its probabilities: wrap it in "
                "CalibratedClassifierCV, or choose another"
            )
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        X, labels = indexable(X, labels)
        classes, columns = np.unique(labels, return_inverse=True)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, labels, dtype=np.float64)
        counted = classes if weight is None else np.unique(labels[weight > 0])
        if len(counted) < 2:
            raise LabelError(f"y has one class only ({counted.tolist()}) of positive weight; at least two are needed")
        training, calibration = _split(columns, self.calibration_size, self.random_state)
        X_training, X_calibration = _safe_indexing(X, training), _safe_indexing(X, calibration)
        small, big = (
            clone(model).fit(X_training, labels[training], **_weights(model, name, weight, training))
            for name, model in (("small", self.small), ("big", self.big))
        )
        router = ExpectedGainRouter() if self.router is None else clone(self.router)
        router.set_params(classes=classes)
        strong = "strong_posterior" if hasattr(big, "predict_proba") else "strong_prediction"
        answers = {strong: _answers(big, X_calibration)}
        if weight is not None:
            answers["sample_weight"] = weight[calibration]
        router.fit(small.predict_proba(X_calibration), labels[calibration], **answers, check_class_order=False)
        self.classes_, self.small_, self.big_, self.router_ = classes, small, big, router
        self.calibration_rows_ = calibration
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(small, name):
                setattr(self, name, getattr(small, name))
        if hasattr(self, "_escalated"):
            del self._escalated
        return self

    def predict(self, X: Any) -> LabelArray:
        """Answer samples, (N,): those of `big` where it was called, those of the router's weak route elsewhere."""
        return self._answer(X).prediction

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities (N, K) of the route that answered."""
        return self._answer(X).probabilities

    def route(self, X: Any) -> Decision:
        """Decide which samples to escalate, without calling `big`; see `Router.route`."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        return self.router_.route(self.small_.predict_proba(X))

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy of `predict`."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    @property
    def escalated_(self) -> BoolArray:
        """Where the last call of `predict` or `predict_proba` answered with `big`, (N,)."""
        if not hasattr(self, "_escalated"):
            raise AttributeError("escalated_ describes the last call of predict; call predict(X) first, or route(X)")
        return self._escalated

    def _answer(self, X: Any) -> Answer:
        from sklearn.utils import _safe_indexing, indexable

        decision = self.route(X)
        rows = np.flatnonzero(decision.escalate)
        strong = _answers(self.big_, _safe_indexing(indexable(X)[0], rows)) if len(rows) else None
        answer = self.router_.answer(decision, strong)
        self._escalated = answer.escalated
        return answer

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, get_tags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=True)
        inputs = [get_tags(model).input_tags for model in (self.small, self.big)]
        tags.input_tags = InputTags(
            **{name: all(getattr(i, name) for i in inputs) for name in ("sparse", "allow_nan", "string", "categorical")}
        )
        return tags


def _weights(model: Any, name: str, weight: FloatArray | None, rows: IntArray) -> dict[str, FloatArray]:
    """The argument of `fit` that passes weights to a classifier, or to the last step of a pipeline."""
    if weight is None:
        return {}
    from sklearn.utils.validation import has_fit_parameter

    step, last = model.steps[-1] if hasattr(model, "steps") else ("", model)
    if not has_fit_parameter(last, "sample_weight"):
        raise SettingError(
            f"sample_weight is given, but {name} is {model!r}, whose fit takes none; leave it out, or choose a "
            "classifier that takes weights"
        )
    return {f"{step}__sample_weight" if step else "sample_weight": weight[rows]}


def _answers(big: Any, X: Any) -> Any:
    return big.predict_proba(X) if hasattr(big, "predict_proba") else big.predict(X)


def _split(columns: IntArray, size: Any, random_state: Any) -> tuple[IntArray, IntArray]:
    """Rows to train on, and to calibrate on; a class with one sample is trained on."""
    from sklearn.utils import check_random_state

    n = len(columns)
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool) and 0 < size < n:
        share = int(size) / n
    elif isinstance(size, (float, np.floating)) and 0 < size < 1:
        share = float(size)
    else:
        raise SettingError(
            f"calibration_size is {size!r}; a share between 0 and 1, or a number of samples below {n}, is needed"
        )
    order = check_random_state(random_state).permutation(n)
    aside = np.zeros(n, dtype=bool)
    for column in range(int(columns.max()) + 1):
        members = order[columns[order] == column]
        aside[members[: min(len(members) - 1, max(1, round(share * len(members))))]] = True
    if aside.sum() < 2:
        raise TooFewSamplesError(
            f"{n} samples of {int(columns.max()) + 1} classes leave {int(aside.sum())} to calibrate on; a router needs "
            "at least 2, better some hundreds: add samples"
        )
    return np.flatnonzero(~aside), np.flatnonzero(aside)
