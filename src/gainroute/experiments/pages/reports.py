"""The HTML reports of the demo and of a run on a user's own data: their figures, and the pages that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gainroute._version import __version__
from gainroute.evaluation.figures import DARK, LIGHT, draw_panel, draw_reliability, encode, rate_panel
from gainroute.experiments.figures import diagrams_of, lines_of
from gainroute.experiments.measures import chosen_alpha
from gainroute.experiments.pages import html, tables
from gainroute.experiments.pages.headline import BUDGET, against, deployed, sentence, yardstick
from gainroute.experiments.pages.text import percent, signed
from gainroute.experiments.records import Record
from gainroute.experiments.scores import ANALYTICAL, CALIBRATED, ORACLE, OURS, REFERENCE, defer_name
from gainroute.experiments.study import Study
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray

__all__ = ["TITLE", "demo_page", "draw_demo", "draw_own", "own_page"]

TITLE = "Collaborate only where it pays"

Pictures = Mapping[str, tuple[Any, Any]]


# ---- a run on a user's own data ------------------------------------------------------------------


def draw_own(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Draw every figure in both themes."""
    return _draw_panels(study, _drawn_routers(record), "What each budget buys")


def own_page(results: Mapping[str, Any], pictures: Pictures) -> str:
    """Write the report as one HTML page with its figures."""
    head, parties = results["headline"], results["parties"]
    body = [
        _route_cards(results),
        html.note(f"{against(head)} {deployed(head)} {yardstick(results)}".strip()),
        html.section(
            "What was done",
            html.paragraph(
                f"{len(parties)} parties ({', '.join(parties)}) and {results['class_count']} classes. Both routes were "
                f"trained on one part of the samples, the router was calibrated on a second part "
                f"({results['calibration_samples']:,} samples), and everything here is measured on a third "
                f"({results['test_samples']:,}). Embeddings are sent as {results['codec']}.{_estimators(results)}"
            ),
            html.paragraph(
                "Training ran where all views can be read. Serving does not need that: each party's folder holds its "
                "own models and views, the server's folder the fusion head and `router.safetensors`."
            ),
        ),
        _routers_section(results, pictures),
        html.section("Is it better than confidence?", html.table(tables.difference_table(results, "0"))),
        _escalated_section(results, pictures),
        html.section("Calibration", _reliability_picture(pictures)),
    ]
    foot = (
        f"gainroute {__version__} · seed {results['seeds'][0]} · trained in {results['seconds']['training']:.0f} s · "
        "all numbers: results.json"
    )
    return html.page(TITLE, "gainroute train", sentence(head), body, foot)


# ---- the demo -------------------------------------------------------------------------------------


def draw_demo(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Draw every figure in both themes."""
    names = _drawn_routers(record)
    drawn = _draw_panels(study, names, "Digits in four quadrants: what each budget buys")
    noisy = lines_of(study, names, study.regimes[-1], "accuracy")
    return drawn | {"noisy": _both(rate_panel(noisy, "accuracy", "The same under noise"))}


def demo_page(results: Mapping[str, Any], record: Record, pictures: Pictures) -> str:
    """Write the report as one HTML page with its figures."""
    head = results["headline"]
    noisy = list(results["regimes"])[-1]
    body = [
        _route_cards(results),
        html.note(f"{against(head)} {deployed(head)}"),
        html.section(
            "What happens here",
            html.paragraph(
                f"Each of {results['test_samples']} handwritten digits is cut into four quadrants. Each quadrant "
                "belongs to a different party, which shares it with no one. In Round 1 every party sends ten "
                "probabilities; they are pooled into the weak answer. In Round 2 every party also sends an embedding, "
                "and a model that sees all embeddings gives the strong answer. It is right more often, but costs more."
            ),
            html.paragraph(
                "After Round 1 the router decides for each sample whether Round 2 is worth it. Its score is the "
                "expected gain in accuracy; the samples with the highest scores are escalated, up to the budget."
            ),
            _stories(record),
        ),
        _routers_section(
            results,
            pictures,
            note=" Defer (learning to defer) trains Round 1 models of its own (α chosen on calibration data); its line "
            "may start elsewhere.",
            below=html.paragraph(
                "One seed and a small test set: differences of less than about a point are within chance.", small=True
            ),
        ),
        _escalated_section(
            results,
            pictures,
            above=html.paragraph(
                "Most answers do not change in Round 2. A good router spends its budget on samples whose error the "
                "strong route corrects (escalation precision, EP) and not on samples whose outcome stays the same "
                "(neutral escalations, NE)."
            ),
        ),
        html.section(
            "Why calibration matters",
            html.paragraph(
                "A pool of several posteriors is rarely right as often as it claims. An expected gain needs "
                "probabilities that can be relied on, so the router first learns, on held-out samples, how the pooled "
                "posterior relates to the true class."
            ),
            _reliability_picture(
                pictures,
                note=" A few hundred calibration samples bring the posterior closer to the line, not onto it.",
            ),
        ),
        html.section(
            "When views are degraded",
            html.paragraph(
                f"The same models and routers, with noise on the images of {noisy} of the {results['class_count']} "
                "classes at test time. Nothing was trained or calibrated for it."
            ),
            _picture(pictures, "noisy", "Accuracy against the escalation rate under noise", "Nothing was refitted."),
            html.table(tables.deployed_table(results, (OURS,))),
            html.paragraph(
                "Threshold “cross-fitted” is the default, “calibration” the paper's quantile. A threshold from clean "
                "data need not keep its budget under noise: samples that have become more doubtful score higher.",
                small=True,
            ),
        ),
    ]
    foot = (
        f"gainroute {__version__} · seed {results['seeds'][0]} · {results['calibration_samples']} calibration and "
        f"{results['test_samples']} test samples · trained in "
        f"{results['seconds']['training']:.0f} s · all numbers: results.json"
    )
    return html.page(TITLE, "gainroute demo: digits in four quadrants", sentence(head), body, foot)


def _stories(record: Record) -> str:
    """Three test samples: one escalated and corrected, one kept and right, one that should have been escalated."""
    images = _images(record)
    if images is None:
        return ""
    router = ExpectedGainRouter(BUDGET)
    held, test = record.calibration, record.test
    router.fit(held.local_posteriors, held.labels, held.strong_prediction)
    decision = router.route(test.local_posteriors)
    weak, strong = decision.weak_prediction == test.labels, test.strong_prediction == test.labels
    kinds = (
        ("Escalated, and corrected", decision.escalate & ~weak & strong, decision.score),
        ("Kept, and right", ~decision.escalate & weak, -decision.score),
        ("Kept, and missed", ~decision.escalate & ~weak & strong, -decision.score),
    )
    stories = []
    for title, rows, rank in kinds:
        if not rows.any():
            continue
        n = int(np.flatnonzero(rows)[rank[rows].argmax()])
        names = record.class_names
        answer, truth = int(decision.weak_prediction[n]), int(test.labels[n])
        right = answer == truth
        gain, threshold = signed(decision.score[n], 0), signed(decision.threshold, 0)
        stories.append(
            f'<div class="story"><h3>{title}</h3><div class="row">'
            + html.pixels(images[n], f"a handwritten {names[truth]}, cut into four quadrants")
            + html.posterior_bars(decision.pooled[n], names, truth, answer)
            + f"</div><p>Round 1 says <span class={'good' if right else 'bad'}>{names[answer]}</span>. Expected gain "
            f"of Round 2: {gain} points; the threshold is {threshold}."
            + (
                f" Round 2 says <span class=good>{names[truth]}</span>."
                if decision.escalate[n]
                else "" if right else f" Round 2 would have said {names[truth]}."
            )
            + "</p></div>"
        )  # fmt: skip
    bars = "Bars: the pooled posterior of Round 1. Green is the true digit, orange a wrong answer."
    return f'<div class="stories">{"".join(stories)}</div>{html.paragraph(bars, small=True)}'


def _images(record: Record) -> FloatArray | None:
    """The test images, (N, 8, 8); None without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return None
    images: FloatArray = load_digits().images[np.asarray(record.test.ids, dtype=int)] / 16
    return images


# ---- what both share ------------------------------------------------------------------------------


def _drawn_routers(record: Record) -> list[str]:
    """Names of the routers to draw; of learning to defer, the α that is best on calibration data."""
    alpha = chosen_alpha(record)
    defer = [] if alpha is None else [defer_name(alpha)]
    return [OURS, ANALYTICAL, REFERENCE, CALIBRATED, "learned gain", *defer, "random", ORACLE]


def _draw_panels(study: Study, names: Sequence[str], title: str) -> dict[str, tuple[Any, Any]]:
    """Accuracy, EP and NE on clean samples, and reliability before and after calibration; light and dark each."""
    words = {"accuracy": title, "EP": "Are the right samples escalated?", "NE": "How many escalations change nothing?"}
    drawn = {}
    for measure, heading in words.items():
        panel = rate_panel(lines_of(study, names, 0, measure), measure, heading)
        drawn[measure] = _both(panel, wide=measure == "accuracy")
    diagrams = {name: diagram for name, diagram in diagrams_of(study, 0).items() if name != "temperature"}
    named = {"clean": dict(zip(("before calibration", "after calibration"), diagrams.values(), strict=True))}
    drawn["reliability"] = draw_reliability(named, theme=LIGHT), draw_reliability(named, theme=DARK)
    return drawn


def _both(panel: Any, *, wide: bool = False) -> tuple[Any, Any]:
    size, legend = ((6.2, 4.3), "inside") if wide else ((4.6, 3.9), "below")
    light, dark = (draw_panel(panel, theme=theme, size=size, legend=legend) for theme in (LIGHT, DARK))
    return light, dark


def _picture(pictures: Pictures, name: str, alt: str, caption: str) -> str:
    """Embed one of the pictures in both themes."""
    light, dark = pictures[name]
    narrow = name in ("reliability", "noisy")
    return html.figure(encode(light, "svg"), encode(dark, "svg"), alt, caption, narrow=narrow)


def _estimators(results: Mapping[str, Any]) -> str:
    roles = {"local": "Local models", "fused": "Fusion head"}
    given = results.get("estimators", {})
    return "".join(f" {role}: {given[name]} of scikit-learn." for name, role in roles.items() if name in given)


def _route_cards(results: Mapping[str, Any]) -> str:
    """Accuracy and bytes of never, sometimes and always escalating, side by side."""
    head, size = results["headline"], dict(zip(results["rates"], results["bytes"], strict=True))

    def card(title: str, accuracy: float, rate: float, about: str, *, main: bool = False) -> str:
        return html.card(title, f"{percent(accuracy)} %", about, f"{size[rate]:,.0f} bytes per sample", main=main)

    budget = head["budget"]
    return html.cards(
        card("Weak route", head["weak"], 0.0, "never escalate, our default's pool"),
        card("Our default", head["accuracy"], budget, f"escalate {100 * budget:g} %", main=True),
        card("Strong route", head["strong"], 1.0, "always escalate"),
    )


def _routers_section(results: Mapping[str, Any], pictures: Pictures, *, note: str = "", below: str = "") -> str:
    """Accuracy of every router at every budget; `note` ends the caption of the figure, `below` is HTML at the end."""
    return html.section(
        "Every router, every budget",
        _picture(
            pictures,
            "accuracy",
            "Accuracy against the escalation rate, one line per router",
            "Further up and further left is better. Squares: never and always escalating. The oracle knows which of "
            "the paper's answers are wrong, and bounds the routers that give these answers; our default answers by "
            "itself on both routes, and may exceed it. Random escalation uses no score." + note,
        ),
        html.table(tables.accuracy_table(results, "0")),
        below,
    )


def _escalated_section(results: Mapping[str, Any], pictures: Pictures, *, above: str = "") -> str:
    """Which samples are escalated, by EP and NE, and what each budget buys; `above` is HTML at the beginning."""
    return html.section(
        "What is escalated",
        above,
        '<div class="pair">',
        _picture(
            pictures, "EP", "EP against the escalation rate", "Higher is better: escalations that correct an error."
        ),
        _picture(pictures, "NE", "NE against the escalation rate", "Lower is better: escalations that change nothing."),
        "</div>",
        html.table(tables.budget_table(results, "0", OURS)),
    )


def _reliability_picture(pictures: Pictures, *, note: str = "") -> str:
    """The reliability diagrams before and after calibration; `note` ends the caption."""
    return _picture(
        pictures,
        "reliability",
        "Reliability diagrams before and after calibration",
        "On the dotted line, a posterior of 80 % is right in 80 % of the cases. ECE is the mean distance from the "
        "line, on test samples, which were not used for calibration." + note,
    )
