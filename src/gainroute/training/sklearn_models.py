"""scikit-learn estimators as models of a run: fitted, converted to weights or ONNX, and compared with the original."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gainroute._util.arrays import Float32Array
from gainroute._util.blas import one_thread
from gainroute._util.importing import load_object
from gainroute.errors import ArtifactError, DataError, MissingExtraError, SettingError
from gainroute.io.onnx_party import TOLERANCE
from gainroute.routing.calibrate import softmax
from gainroute.routing.types import FloatArray, IntArray
from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.training_view import forward_all

__all__ = ["Estimators", "describe_estimator", "fit_estimator", "make_estimator"]

_PROBES = 256  # rows per call while weights are read off a decision function


@dataclass(frozen=True)
class Estimators:
    """What takes the place of the networks.

    Attributes
    ----------
    local
        Cloned and fitted on the view of each party; None trains networks.
    fused
        Fitted on the embeddings of all parties in a row, as the fusion head; None trains a network.
    held_out
        One view per party of samples that train nothing: converted models are compared with their estimators on them.
    """

    local: Any = None
    fused: Any = None
    held_out: Sequence[Float32Array] = ()


def make_estimator(given: Any, name: str) -> Any:
    """The unfitted classifier that a setting gives: an estimator, or a text such as `sklearn.svm:LinearSVC(C=0.1)`.

    Parameters
    ----------
    given
        A scikit-learn classifier, or ``package.module:attribute`` of a class or function that makes one. Arguments in
        parentheses have to be literals.
    name
        The setting, for error messages.
    """
    try:
        from sklearn.base import clone, is_classifier
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise MissingExtraError(f"an estimator as {name}", "sklearn") from None
    made = _load(given, name) if isinstance(given, str) else given
    if not hasattr(made, "get_params") or isinstance(made, type) or not is_classifier(made):
        raise SettingError(
            f"{name} is {given!r}, which gives a {type(made).__name__}; a scikit-learn classifier, its class, or a "
            "function that returns one is needed"
        )
    return clone(made)


def _load(spec: str, name: str) -> Any:
    place, parenthesis, rest = spec.partition("(")
    found = load_object(place.strip(), name)
    if not callable(found) and not parenthesis:
        return found
    try:
        call = ast.parse(f"_({rest}" if parenthesis else "_()", mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("not a call")  # noqa: TRY301, TRY004 (one message for everything that is not a call)
        arguments = [ast.literal_eval(value) for value in call.args]
        return found(*arguments, **{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})
    except (SyntaxError, TypeError, ValueError) as error:
        raise SettingError(
            f"{name} is {spec!r}, which cannot be called ({error}); write arguments as literals, such as "
            "sklearn.linear_model:LogisticRegression(C=0.1), or name a function of your own that returns the estimator"
        ) from error


def describe_estimator(estimator: Any) -> str:
    """An estimator and its parameters on one line, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(estimator).split()))


def fit_estimator(
    estimator: Any,
    inputs: Float32Array,
    labels: IntArray,
    held_out: Float32Array,
    *,
    classes: int,
    seed: int,
    name: str,
) -> tuple[ModelSpec, nn.Module]:
    """Fit a clone of an estimator, and return it as a model that can be saved without code.

    A decision function that is affine becomes a linear layer, whatever computes it. Everything else is converted by
    skl2onnx. An estimator without `predict_proba` has the softmax of its decision function as posterior.

    Parameters
    ----------
    estimator
        As `make_estimator` returns it. Every `random_state` that is None gets a seed.
    inputs, labels
        (N, …), of which the values are read in a row, and (N,) with classes 0 … K − 1.
    held_out
        Other inputs, on which the answers of the model are compared with those of the estimator.
    classes
        K.
    seed
        Of the estimator, 32 bits.
    name
        The model, for error messages.

    Raises
    ------
    ArtifactError
        If a posterior differs by more than `TOLERANCE`, or if the estimator cannot be converted.
    """
    from sklearn.base import clone

    fitted = clone(estimator)
    states = {key: seed for key, value in fitted.get_params().items() if _is_unset_state(key, value)}
    fitted.set_params(**states)
    with one_thread():
        fitted.fit(_rows(inputs), labels)
        if not np.array_equal(fitted.classes_, np.arange(classes)):
            raise DataError(f"{name}: the estimator knows the classes {fitted.classes_}, not 0 … {classes - 1}")
        expected, size = _posterior(fitted, held_out, classes), inputs[0].size
        if hasattr(fitted, "decision_function"):
            affine = _to_affine(fitted, size, classes)
            if _difference(affine[1], held_out, expected) <= TOLERANCE:
                return affine
        converted = _to_onnx(fitted, size, name)
        difference = _difference(converted[1], held_out, expected)
    if not difference <= TOLERANCE:
        raise ArtifactError(
            f"{name}: the posteriors of {type(fitted).__name__} after conversion to ONNX differ by up to "
            f"{difference:.1g} from its own on held-out samples; at most {TOLERANCE} is allowed. Leave out a scaler in "
            "front of trees (views are standardised already), or choose an estimator that small changes of its input "
            "do not matter to"
        )
    return converted


def _difference(model: nn.Module, inputs: Float32Array, expected: FloatArray) -> float:
    answers = forward_all(model, inputs, "cpu").softmax(dim=1).numpy()
    return float(np.abs(answers - expected).max())


def _is_unset_state(key: str, value: Any) -> bool:
    return value is None and key.rpartition("__")[2] == "random_state"


def _rows(inputs: Float32Array) -> FloatArray:
    return inputs.reshape(len(inputs), -1).astype(np.float64)


def _logits(fitted: Any, rows: FloatArray) -> FloatArray:
    """Its decision function, with a column per class; softmax has the same result with their mean taken away."""
    values = np.asarray(fitted.decision_function(rows))
    if values.ndim == 1:
        values = np.stack([np.zeros_like(values), values], axis=1)
    centred: FloatArray = values - values.mean(axis=1, keepdims=True)
    return centred


def _posterior(fitted: Any, inputs: Float32Array, classes: int) -> FloatArray:
    rows = _rows(inputs)
    found = fitted.predict_proba(rows) if hasattr(fitted, "predict_proba") else softmax(_logits(fitted, rows))
    if found.shape != (len(rows), classes):
        raise SettingError(f"the posteriors of {fitted!r} are {found.shape}; ({len(rows)}, {classes}) is needed")
    return np.asarray(found, dtype=np.float64)


def _to_affine(fitted: Any, size: int, classes: int) -> tuple[ModelSpec, nn.Module]:
    """The linear layer that has the values of the decision function at 0 and at every unit vector."""
    bias = _logits(fitted, np.zeros((1, size)))[0]
    unit = [np.eye(min(_PROBES, size - first), size, first) for first in range(0, size, _PROBES)]
    weight = np.concatenate([_logits(fitted, rows) for rows in unit]) - bias
    spec = ModelSpec("local-mlp", {"features": size, "outputs": classes, "widths": [], "dropout": 0.0})
    model = build_model(spec)
    tensors = {"layers.1.weight": weight.T, "layers.1.bias": bias}
    model.load_state_dict({key: torch.from_numpy(value.astype(np.float32)) for key, value in tensors.items()})
    return spec, model.eval()


def _to_onnx(fitted: Any, size: int, name: str) -> tuple[ModelSpec, nn.Module]:
    kind = type(fitted).__name__
    if not hasattr(fitted, "predict_proba"):
        raise ArtifactError(
            f"{name}: {kind} has no predict_proba, and its decision function is not affine; wrap it in "
            "CalibratedClassifierCV"
        )
    try:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType
        from skl2onnx.helpers.onnx_helper import select_model_inputs_outputs
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"skl2onnx", "onnx"}:
            raise
        raise MissingExtraError(f"{name}: converting {kind}, which is not linear, with skl2onnx", "skl2onnx") from None
    try:
        takes = [("view", FloatTensorType([None, size]))]
        graph = to_onnx(fitted, initial_types=takes, options={id(fitted): {"zipmap": False}})
        graph = select_model_inputs_outputs(graph, "probabilities")
    except Exception as error:  # it has no exception of its own
        reason = str(error.__cause__ or error).splitlines()[0][:200]
        raise ArtifactError(f"{name}: skl2onnx cannot convert {kind} ({reason}); choose another estimator") from error
    content = np.frombuffer(graph.SerializeToString(), np.uint8)
    spec = ModelSpec("onnx", {"size": len(content)})
    model = build_model(spec)
    model.load_state_dict({"graph": torch.from_numpy(content.copy())})
    return spec, model.eval()
