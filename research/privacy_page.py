"""Tables and figures of the study of privacy, from what `research.privacy` measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gainroute.evaluation.figure_style import LIGHT, drawing
from gainroute.evaluation.figures import encode

__all__ = ["figures", "page"]

Cells = Sequence[Mapping[str, Any]]
Found = Mapping[str, Mapping[str, Cells]]
Rows = tuple[list[str], list[list[str]]]

NAMES = {
    "digits": "digits",
    "adult": "Adult",
    "digits, images": "digits as images",
    "modelnet40": "ModelNet40",
}
ATTACKED = ("digits", "adult")

DESCRIBED = {
    "digits": "Digits: four parties with a quadrant of 16 pixels each, as features",
    "adult": "Adult: three parties with columns of 2,000 people of the UCI table",
    "digits, images": "Digits as images: the same quadrants, with convolutional models",
    "modelnet40": "ModelNet40: two parties with a view each of 4,000 objects",
}

ABOUT = """# Attacks on a federation, and what protection costs

Made by `python -m research.privacy --data-dir data`. Federations are formed with the training code of the package and
the default settings of `gainroute federate`, in one process, with every message encoded as on the wire; the messages
are what the attacks read. {data}. Cells show the mean over seeds, and in brackets the smallest and the largest value,
in per cent; a cell without brackets is **one seed only**. {missing} What follows from the figures is in
[privacy.md](../privacy.md#attacks-measured).

*Labels stay* is split learning as usually described: parties have no labels, and get gradients that were computed
from the true ones. gainroute does not offer it: parties need labels for Round 1. Here it shows what gradients alone
reveal.

## Labels from gradients

The first party tries to find the training labels, from gradients of its first epoch or of all of them. It knows 40
labels. *Length*: linear discriminants on the lengths of the gradients. *Direction*: clusters of directions, named in
the best way. *Trained*: linear discriminants on the gradients, fitted to the 40 samples and then to their own
guesses. Numbers are balanced over classes; chance is 10 % and 50 %.

{labels}

The same party with private labels. *Given*: it takes the randomised label as it is. *With its view*: a model of
randomised labels given its own view, corrected for the noise, and the sample's own randomised label. *With
gradients*: the same model also reads what gradients say beyond the randomised label. *Strong route on new samples*:
how often a model that never saw the label predicts it, for comparison.

{private}

![Share of the training labels that a party recovers]({stem}_labels.png)

## Views from embeddings

The coordinator trains a decoder on pairs of embeddings and views, and decodes all views of the test samples. Numbers
are the share of the variance explained: 100 % is exact, 0 % is the mean view. *All pairs*: all samples but the test
part; *100 pairs*: as written. The strong route's accuracy is that of the same federations.

{views}

For comparison, with all pairs: from the class alone {by_class}, from the posteriors of Round 1 {by_posterior}.

![Digits, decoded]({stem}_digits.png)

## Membership from posteriors

Whether a sample was in the training part, from the posterior of a route. *Loss*: a threshold on the logit of the true
class. *Shadow models*: the same less its mean over models that did not train on the sample; the other seeds are the
shadow models. Area under the curve (50 % is chance), and after the slash the share of members that are found at 1 %
false alarms.

{membership}

What the answer contains matters too, for the default federation:

{answers}

## Accuracy and bytes

Accuracy on the test part: weak route, strong route, and both as routed with a budget of 20 %. Megabytes per epoch,
all parties together: embeddings up and gradients down; without gradients, embeddings are sent once.

{accuracy}

## Error feedback

{feedback}
"""


def page(found: Found, stem: str) -> str:
    """The page, in Markdown."""
    missing = [shown for name, shown in NAMES.items() if name not in found]
    return ABOUT.format(
        stem=stem,
        data=". ".join(text for name, text in DESCRIBED.items() if name in found),
        missing=f"Not measured yet: {', '.join(missing)}." if missing else "",
        labels=_by_data(found, _label_rows, ATTACKED),
        private=_by_data(found, _private_rows, ATTACKED),
        views=_by_data(found, _view_rows, ATTACKED),
        by_class=_both(found, "class"),
        by_posterior=_both(found, "posteriors"),
        membership=_by_data(found, _membership_rows, ATTACKED),
        answers=_by_data(found, _answer_rows, ATTACKED),
        accuracy=_by_data(found, _accuracy_rows, tuple(NAMES)),
        feedback=_feedback(found),
    )


# ---- tables -----------------------------------------------------------------------------------------


def _shown(values: Sequence[float], digits: int = 1) -> str:
    """Mean in per cent, and the range over seeds."""
    mean = f"{100 * np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ({100 * min(values):.{digits}f}–{100 * max(values):.{digits}f})"


def _of(cells: Cells, group: str, name: str) -> str:
    values = [cell[group][name] for cell in cells if name in cell.get(group, {})]
    return _shown(values) if values else "–"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _by_data(found: Found, rows_of: Callable[[Mapping[str, Cells]], Rows], names: Sequence[str]) -> str:
    tables = []
    for name in names:
        if name in found:
            titles, rows = rows_of(found[name])
            tables.append(_table([NAMES[name], *titles], rows))
    return "\n\n".join(tables)


def _label_rows(cases: Mapping[str, Cells]) -> Rows:
    attacks = [f"{attack}, {span}" for attack in ("length", "direction", "trained") for span in ("1", "all")]
    titles = ["length, 1 epoch", "all epochs", "direction, 1 epoch", "all epochs", "trained, 1 epoch", "all epochs"]
    rows = [
        [name, *(_of(cells, "labels", attack) for attack in attacks), _of(cells, "results", "strong_accuracy")]
        for name, cells in cases.items()
        if name.startswith("labels stay")
    ]
    first = cases.get("labels stay", [])
    rows.append(["own view and 40 labels", "", "", "", "", "", _of(first, "labels", "own view"), ""])
    return [*titles, "strong route"], rows


def _private_rows(cases: Mapping[str, Cells]) -> Rows:
    attacks = ("given", "given, own view", "given, own view, gradients, 1", "given, own view, gradients, all")
    titles = ["given", "with its view", "with gradients, 1 epoch", "all epochs", "trained with 40 labels, all epochs"]
    return [*titles, "strong route on new samples"], [
        [
            name,
            *(_of(cells, "labels", attack) for attack in (*attacks, "trained, all")),
            _of(cells, "results", "strong_accuracy"),
        ]
        for name, cells in cases.items()
        if name.startswith("ε")
    ]


def _view_rows(cases: Mapping[str, Cells]) -> Rows:
    return ["all pairs", "100 pairs", "strong route"], [
        [
            name,
            _of(cells, "views", "embeddings"),
            _of(cells, "views", "embeddings, 100 pairs"),
            _of(cells, "results", "strong_accuracy"),
        ]
        for name, cells in cases.items()
        if "views" in cells[0]
    ]


def _both(found: Found, name: str) -> str:
    return ", ".join(
        f"{_of(found[data]['default'], 'views', name)} % ({NAMES[data]})" for data in ATTACKED if data in found
    )


def _pair(cells: Cells, name: str) -> str:
    values = [cell["membership"][name] for cell in cells if name in cell.get("membership", {})]
    if not values:
        return "–"
    return f"{_shown([v[0] for v in values])} / {100 * np.mean([v[1] for v in values]):.1f}"


def _membership_rows(cases: Mapping[str, Cells]) -> Rows:
    ways = [f"{route}, {way}" for route in ("weak", "strong") for way in ("loss", "shadow models")]
    chosen = ("default", "no gradients", "ε = 8", "ε = 3", "ε = 1", "16 values", "8 values", "embedding noise 1")
    return [f"{way.replace(',', ' route,')}" for way in ways], [
        [name, *(_pair(cases[name], way) for way in ways)] for name in chosen if name in cases
    ]


def _answer_rows(cases: Mapping[str, Cells]) -> Rows:
    ways = {
        "all probabilities, without the true class": "confidence",
        "all probabilities": "shadow models",
        "probabilities with one decimal": "one decimal",
        "the class only": "class only",
        "the class only, shadow models": "class only, shadow models",
    }
    rows = [
        [shown, *(_pair(cases["default"], f"{r}, {way}") for r in ("weak", "strong"))] for shown, way in ways.items()
    ]
    return ["weak route", "strong route"], rows


def _accuracy_rows(cases: Mapping[str, Cells]) -> Rows:
    rows = []
    for name, cells in cases.items():
        first = cells[0]["results"]
        epoch = f"{first['bytes_up_per_epoch'] / 1e6:.2f} up, {first['bytes_down_per_epoch'] / 1e6:.2f} down"
        sent = epoch if first["bytes_down_per_epoch"] else f"once {first['bytes_once'] / 1e6:.2f} up"
        accuracies = [_of(cells, "results", f"{route}_accuracy") for route in ("weak", "strong", "routed")]
        rows.append([name, *accuracies, sent, f"{first['epochs']:.0f}"])
    return ["weak route", "strong route", "routed", "MB per epoch", "epochs"], rows


def _feedback(found: Found) -> str:
    lines = []
    for data in ATTACKED:
        cases = found.get(data, {})
        plain, fed, exact = (
            [cell["results"]["strong_accuracy"] for cell in cases.get(name, [])]
            for name in ("int8", "int8, error feedback", "default")
        )
        count = min(len(plain), len(fed), len(exact))
        if count:
            gained, lost = (100 * np.subtract(a[:count], b[:count]) for a, b in ((fed, plain), (plain, exact)))
            lines.append(
                f"- {NAMES[data]}: int8 against float32 {lost.mean():+.2f} points "
                f"({lost.min():+.2f} to {lost.max():+.2f}); int8 with error feedback against int8 without "
                f"{gained.mean():+.2f} ({gained.min():+.2f} to {gained.max():+.2f})."
            )
    return "Strong route, same seeds:\n\n" + "\n".join(lines)


# ---- figures ----------------------------------------------------------------------------------------


def figures(found: Found) -> dict[str, bytes]:
    """The figures as PNG, by name."""
    drawn = {}
    sets = [data for data in ATTACKED if data in found]
    if sets:
        drawn["labels"] = _labels_figure(found, sets)
    examples = {case: cells[0]["examples"] for case, cells in found.get("digits", {}).items() if "examples" in cells[0]}
    if "default" in examples:
        drawn["digits"] = _digits_figure(examples)
    return drawn


def _labels_figure(found: Found, sets: Sequence[str]) -> bytes:
    """Per case, what a party recovers from one epoch and from all, and the strong route's accuracy."""
    stay = [name for name in found[sets[0]] if name.startswith("labels stay")]
    private = [f"ε = {e}" for e in (8, 4, 3, 2, 1) if f"ε = {e}" in found[sets[0]]]
    colours = LIGHT.colours
    with drawing(LIGHT) as new_figure:
        figure = new_figure((9.0, 4.6))
        row = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
        for axes, data in zip(row, sets, strict=True):
            cases = found[data]
            for place, name in enumerate([*stay, *private]):
                attack = "trained" if name in stay else "given, own view, gradients"
                marks = (("1", "o", "vermilion"), ("all", "s", "blue"))
                for offset, (span, mark, colour) in zip((-0.12, 0.12), marks, strict=True):
                    values = 100 * np.array([c["labels"][f"{attack}, {span}"] for c in cases.get(name, [])])
                    if len(values):
                        label = {"1": "recovered from one epoch", "all": "recovered from all epochs"}[span]
                        axes.plot(
                            [values.min(), values.max()], [place + offset] * 2, color=colours[colour], linewidth=2
                        )
                        axes.plot(values.mean(), place + offset, mark, color=colours[colour], label=label)
                reached = [100 * c["results"]["strong_accuracy"] for c in cases.get(name, [])]
                if reached:
                    axes.plot(
                        np.mean(reached), place, "D", color=LIGHT.faint, markerfacecolor="none", label="strong route"
                    )
            view = [100 * c["labels"]["own view"] for c in cases.get("labels stay", [])]
            if view:
                axes.axvline(np.mean(view), color=LIGHT.faint, linestyle=":", label="own view and 40 labels")
            axes.set_title(NAMES[data], loc="left")
            axes.set_xlabel("% of the training labels;\nof new samples for the strong route")
        row[0].set_yticks(np.arange(len(stay) + len(private)), [*stay, *private])
        row[0].invert_yaxis()
        handles, labels = row[0].get_legend_handles_labels()
        marks_by_label = dict(zip(labels, handles, strict=True))
        figure.legend(marks_by_label.values(), marks_by_label.keys(), loc="outside lower center", ncols=4)
        return encode(figure, "png", 120)


def _digits_figure(examples: Mapping[str, Any]) -> bytes:
    """Ten digits, and what the coordinator decodes of each."""
    default = examples["default"]
    rows = {"original": default["original"], "embeddings of 128 values": default["embeddings"]}
    rows["the same, 100 pairs"] = default["embeddings, 100 pairs"]
    for case in ("no gradients", "16 values", "8 values", "embedding noise 1", "embedding noise 2"):
        if case in examples:
            rows[case] = examples[case]["embeddings"]
    rows |= {"posteriors of Round 1": default["posteriors"], "class alone": default["class"]}
    with drawing(LIGHT) as new_figure:
        figure = new_figure((7.5, 0.72 * len(rows)))
        for line, (axes, (name, values)) in enumerate(zip(figure.subplots(len(rows), 10), rows.items(), strict=True)):
            for column, digit in zip(axes, np.array(values), strict=True):
                quarters = digit.reshape(2, 2, 4, 4)
                whole = quarters.transpose(0, 2, 1, 3).reshape(8, 8)
                column.imshow(whole, cmap="gray_r", vmin=0, vmax=16)
                column.set_xticks([])
                column.set_yticks([])
                column.grid(visible=False)
            axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
            if line == 0:
                for column in axes:
                    column.spines[:].set_color(LIGHT.ink)
        return encode(figure, "png", 120)
