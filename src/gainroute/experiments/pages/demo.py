"""The report of the demo: its figures, and the page that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gainroute._version import __version__
from gainroute.experiments.pages import html, tables
from gainroute.experiments.pages.headline import BUDGET, against, deployed, sentence
from gainroute.experiments.pages.parts import (
    TITLE,
    Pictures,
    draw_panels,
    draw_regime,
    drawn_routers,
    escalated_section,
    html_table,
    picture,
    reliability_picture,
    route_cards,
    routers_section,
)
from gainroute.experiments.pages.text import signed
from gainroute.experiments.records import Record
from gainroute.experiments.scores import OURS
from gainroute.experiments.study import Study
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray

__all__ = ["demo_page", "draw_demo"]


def draw_demo(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Draw every figure in both themes."""
    names = drawn_routers(record)
    drawn = draw_panels(study, names, "Digits in four quadrants: what each budget buys")
    return drawn | {"noisy": draw_regime(study, names, study.regimes[-1], "The same under noise")}


def demo_page(results: Mapping[str, Any], record: Record, pictures: Pictures) -> str:
    """Write the report as one HTML page with its figures."""
    head = results["headline"]
    noisy = list(results["regimes"])[-1]
    body = [
        route_cards(results),
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
        routers_section(
            results,
            pictures,
            note=" Defer (learning to defer) trains Round 1 models of its own (α chosen on calibration data); its line "
            "may start elsewhere.",
            below=html.paragraph(
                "One seed and a small test set: differences of less than about a point are within chance.", small=True
            ),
        ),
        escalated_section(
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
            reliability_picture(
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
            picture(pictures, "noisy", "Accuracy against the escalation rate under noise", "Nothing was refitted."),
            html_table(tables.deployed_table(results, (OURS,))),
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
