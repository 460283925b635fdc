"""Attacks on federations as `gainroute federate` forms them, and what protection costs in accuracy and bytes.

::

    python -m research.privacy --data-dir data      # writes docs/results/privacy.json, and .md and .png beside it

`--data-dir` holds adult.csv and modelnet40/points.npz; what is not there is left out. The digits need no files.
Every cell (data set, case, seed) is kept in `--work`: a command that was stopped resumes there. See `research.tapped`
for the federation and `research.attacks` for the attacks.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes, write_json, write_npz
from gainroute._util.progress import show_progress
from gainroute.io.views import PartyView
from gainroute.routing.types import IntArray
from gainroute.training.label_privacy import keep_probability
from research import attacks
from research.budgets import TABLES
from research.privacy_page import figures, page
from research.tapped import Case, Formed, Samples, form

__all__ = ["CASES", "label_attacks", "main", "measure", "memberships"]

KNOWN = 40  # labels that an attacker knows
ADULT_ROWS, OBJECTS = 2000, 4000
EPSILONS = (1, 2, 3, 4, 8)
CASES = {
    "default": Case(),
    "float16": Case(messages="float16"),
    "int8": Case(messages="int8"),
    "int8, error feedback": Case(messages="int8", feedback=True),
    "no gradients": Case(exchange="embeddings"),
    **{f"ε = {epsilon}": Case(epsilon=epsilon) for epsilon in EPSILONS},
    "ε = 3, no gradients": Case(epsilon=3, exchange="embeddings"),
    "labels stay": Case(labels_stay=True),
    "labels stay, clipped": Case(labels_stay=True, clip=True),
    "labels stay, clipped, noise 2": Case(labels_stay=True, clip=True, gradient_noise=2),
    "labels stay, clipped, noise 8": Case(labels_stay=True, clip=True, gradient_noise=8),
    "labels stay, 16 values": Case(labels_stay=True, width=2),
    "16 values": Case(width=2),
    "8 values": Case(width=1),
    "embedding noise 1": Case(embedding_noise=1),
    "embedding noise 2": Case(embedding_noise=2),
}
MESSAGES = ("default", "float16", "int8", "no gradients", *(f"ε = {epsilon}" for epsilon in EPSILONS))
# Measured first with every seed, then the others.
CORE = (
    "default",
    "int8",
    "no gradients",
    *(f"ε = {e}" for e in EPSILONS),
    "labels stay",
    "labels stay, clipped, noise 8",
)
# Where decoders are trained: what changes an embedding.
DECODED = {name for name, case in CASES.items() if case.width or case.embedding_noise} - {"labels stay, 16 values"}
DECODED |= {"default", "int8", "no gradients"}


def _quadrants() -> tuple[list[Any], IntArray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.float32)
    return [images[:, top : top + 4, left : left + 4] for top in (0, 4) for left in (0, 4)], digits.target


def _samples(name: str, views: Sequence[Any], labels: Any) -> Samples:
    return Samples(name, tuple(PartyView(f"party{i}", None, view) for i, view in enumerate(views)), np.asarray(labels))


def _digits(_: Path | None) -> Samples:
    views, labels = _quadrants()
    return _samples("digits", [view.reshape(len(view), -1) for view in views], labels)


def _digit_images(_: Path | None) -> Samples:
    return _samples("digits, images", *_quadrants())


def _adult(data_dir: Path | None) -> Samples | None:
    path = (data_dir or Path()) / "adult.csv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:ADULT_ROWS]]
    groups, label = TABLES["adult"]

    def column(name: str) -> Any:
        values = [row[name] for row in rows]
        try:
            return np.array(values, dtype=np.float64)
        except ValueError:
            return np.array(values, dtype=object)

    views = [{name: column(name) for name in names} for names in groups]
    return _samples("adult", views, [row[label] for row in rows])


def _modelnet40(data_dir: Path | None) -> Samples | None:
    from gainroute.training.data.registry import load_dataset
    from gainroute.training.data.settings import DataSettings

    if data_dir is None or not (data_dir / "modelnet40" / "points.npz").is_file():
        return None
    found = load_dataset(DataSettings(source="modelnet40", splat=2), data_dir)
    whole = found.train.joined(found.test)
    whole = whole.take(np.random.default_rng(0).permutation(len(whole))[:OBJECTS])
    return _samples("modelnet40", whole.views, whole.labels)


# Loader, cases and number of seeds of each data set.
DATA: dict[str, tuple[Callable[[Path | None], Samples | None], Sequence[str], int]] = {
    "digits": (_digits, tuple(CASES), 3),
    "adult": (_adult, tuple(CASES), 3),
    "digits, images": (_digit_images, (*MESSAGES, "labels stay"), 1),
    "modelnet40": (_modelnet40, MESSAGES, 1),
}


# ---- one cell ---------------------------------------------------------------------------------------


def label_attacks(formed: Formed, case: Case, seed: int) -> dict[str, float]:
    """Balanced share of the training labels that the first party recovers, by attack."""
    rng, train = np.random.default_rng(seed), formed.rows[0]
    labels, given, classes = formed.labels[train], formed.given[train], formed.strong.shape[1]
    known = attacks.known_samples(labels, KNOWN, rng)
    view = formed.inputs[0][train].reshape(len(train), -1).astype(np.float64)
    guessed = {"own view": attacks.guess(view, labels, known)}
    gradients = formed.gradients
    spans = {"1": gradients[:1], "all": gradients} if len(gradients) else {}
    for span, seen in spans.items():
        guessed[f"length, {span}"] = attacks.guess(attacks.lengths(seen), labels, known)
        guessed[f"direction, {span}"] = attacks.cluster(attacks.blocks(seen), labels, classes)
        guessed[f"trained, {span}"] = attacks.guess(attacks.blocks(seen), labels, known)
    if case.epsilon is not None:
        kept = keep_probability(classes, case.epsilon)
        own = [np.eye(classes)[given], attacks.view_evidence(view, given, kept, classes)]
        guessed |= {"given": given, "given, own view": attacks.weigh(own, labels, known)}
        for span, seen in spans.items():
            more = [*own, attacks.gradient_evidence(seen, given, classes)]
            guessed[f"given, own view, gradients, {span}"] = attacks.weigh(more, labels, known)
    return {name: round(attacks.recovered(found, labels, known), 4) for name, found in guessed.items()}


def _view_attacks(samples: Samples, formed: Formed, case: str, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Share of the variance of the views that the coordinator explains, by what it decodes; and decoded examples."""
    raw = [view.raw for view in samples.views]  # pixels are decoded as they are, columns as the encoder reads them
    pixels = [view for view in raw if isinstance(view, np.ndarray)] or formed.inputs
    views = np.concatenate([view.reshape(len(view), -1) for view in pixels], axis=1).astype(np.float64)
    train, held, test = formed.rows
    classes = formed.strong.shape[1]
    random = np.random.default_rng(seed)
    pairs = {"embeddings": random.permutation(np.concatenate([train, held])), "embeddings, 100 pairs": held[:100]}
    codes: dict[str, Any] = {name: np.concatenate(formed.embeddings, axis=1) for name in pairs}
    if case == "default":
        pairs |= {"posteriors": pairs["embeddings"], "class": pairs["embeddings"]}
        logs = np.log(np.maximum(formed.local, 1e-6)).transpose(1, 0, 2)
        codes["posteriors"], codes["class"] = logs.reshape(len(views), -1), np.eye(classes)[formed.labels]
    shown = np.array([test[formed.labels[test] == c][0] for c in range(classes)])
    explained, examples = {}, {}
    for name, known in pairs.items():
        decoded, mean = attacks.best_decoder(codes[name], views, known, seed)
        error = np.square(decoded[test] - views[test]).sum() / np.square(views[test] - mean).sum()
        explained[name] = round(float(1 - error), 4)
        examples[name] = decoded[shown]
    return explained, {"original": views[shown], **examples}


def measure(samples: Samples, name: str, seed: int, **options: Any) -> tuple[dict[str, Any], Formed]:
    """Form one federation and attack it; options as of `form`."""
    case, began = CASES[name], time.process_time()
    formed = form(samples, case, seed, **options, routed=name in MESSAGES)
    cell: dict[str, Any] = {"results": {key: round(float(value), 5) for key, value in formed.results.items()}}
    cell["seconds"] = round(time.process_time() - began, 1)
    if samples.name != "modelnet40":
        if case.labels_stay or case.epsilon is not None:
            cell["labels"] = label_attacks(formed, case, seed)
        if name in DECODED:
            cell["views"], examples = _view_attacks(samples, formed, name, seed)
            if samples.name == "digits" and seed == 0:
                cell["examples"] = {name: found.round(1).tolist() for name, found in examples.items()}
    return cell, formed


# ---- all cells of a case ----------------------------------------------------------------------------


def memberships(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, list[float]]]:
    """Per seed: area under the curve, and members found at 1 % false alarms; the other seeds are the shadow models.

    Parameters
    ----------
    cells
        Per seed: `train` rows, `labels`, `weak` and `strong` posteriors of all samples.
    """
    found: list[dict[str, list[float]]] = [{} for _ in cells]
    labels = cells[0]["labels"]
    inside = np.array([np.isin(np.arange(len(labels)), cell["train"]) for cell in cells])
    for route in ("weak", "strong"):
        scores = np.array([attacks.true_logit(cell[route], labels) for cell in cells])
        for seed, cell in enumerate(cells):
            others, posterior = np.arange(len(cells)) != seed, cell[route]
            ways = {
                "confidence": posterior.max(axis=1),
                "loss": scores[seed],
                "class only": (posterior.argmax(axis=1) == labels).astype(float),
                "one decimal": attacks.true_logit(posterior.round(1), labels),
            }
            if others.any():
                ways["shadow models"] = attacks.calibrated_by_shadows(scores[seed], scores[others], inside[others])
                # Of the class alone: right where models without the sample are usually wrong.
                right = np.array([other[route].argmax(axis=1) == labels for other in cells], dtype=float)
                ways["class only, shadow models"] = attacks.calibrated_by_shadows(
                    right[seed], right[others], inside[others]
                )
            for way, score in ways.items():
                found[seed][f"{route}, {way}"] = [round(v, 4) for v in attacks.membership(score, inside[seed])]
    return found


def _gather(work: Path) -> dict[str, Any]:
    """All finished cells, by data set and case, with the attacks on membership."""
    gathered: dict[str, Any] = {}
    for data, (_, cases, seeds) in DATA.items():
        for case in cases:
            stems = [_stem(work, data, case, seed) for seed in range(seeds)]
            ready = [stem for stem in stems if stem.with_suffix(".json").is_file()]
            if not ready:
                continue
            cells = [json.loads(stem.with_suffix(".json").read_bytes()) for stem in ready]
            if data in ("digits", "adult"):
                arrays = []
                for stem in ready:
                    with np.load(stem.with_suffix(".npz"), allow_pickle=False) as file:
                        arrays.append(dict(file))
                for cell, attacked in zip(cells, memberships(arrays), strict=True):
                    cell["membership"] = attacked
            gathered.setdefault(data, {})[case] = cells
    return gathered


def _stem(work: Path, data: str, case: str, seed: int) -> Path:
    return work / data.replace(", ", "-") / f"{list(CASES).index(case):02d}-{seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all cells that are not there yet; write figures, tables and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--work", type=Path, default=Path("out/privacy"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/privacy.json"))
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3, help="at most that many of each data set")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after that")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with one_thread(), show_progress() as progress:
        for data in options.data:
            load, cases, seeds = DATA[data]
            order = sorted(cases, key=lambda case: case not in CORE)
            wanted = [(case, seed) for seed in range(min(seeds, options.seeds)) for case in order]
            wanted.sort(key=lambda cell: cell[0] not in CORE)
            stems = {cell: _stem(options.work, data, *cell) for cell in wanted}
            left = [cell for cell in wanted if not stems[cell].with_suffix(".json").is_file()]
            samples = load(options.data_dir) if left else None
            if samples is None:
                continue
            local: dict[tuple[int, float | None], Any] = {}
            progress.start(data, len(wanted), len(wanted) - len(left))
            for case, seed in left:
                if time.monotonic() - began > 60 * options.minutes:
                    break
                same = seed, CASES[case].epsilon
                cell, formed = measure(samples, case, seed, local=local.get(same))
                local[same] = formed.local
                stem = stems[case, seed]
                stem.parent.mkdir(parents=True, exist_ok=True)
                arrays = {"train": formed.rows[0], "labels": formed.labels, "strong": formed.strong}
                write_npz(stem.with_suffix(".npz"), {**arrays, "weak": formed.local.mean(axis=0)})
                write_json(stem.with_suffix(".json"), cell)
                progress.advance(f"{case}, seed {seed}")
    found = _gather(options.work)
    write_bytes(options.out, (json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    for name, image in figures(found).items():
        write_bytes(options.out.with_name(f"{options.out.stem}_{name}.png"), image)
    write_bytes(options.out.with_suffix(".md"), page(found, options.out.stem).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
