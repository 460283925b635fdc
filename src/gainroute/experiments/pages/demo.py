"""What the demo says: its figures, and the page that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gainroute._version import __version__
from gainroute.experiments.pages import html, tables
from gainroute.experiments.pages.headline import BUDGET, against, deployed, sentence
from gainroute.experiments.pages.parts import (
    Pictures,
    draw_panels,
    draw_regime,
    drawn_routers,
    picture,
    route_cards,
    shown_table,
)
from gainroute.experiments.pages.text import signed
from gainroute.experiments.records import Record
from gainroute.experiments.scores import OURS
from gainroute.experiments.study import Study
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import FloatArray

__all__ = ["TITLE", "demo_page", "draw_demo"]

TITLE = "Collaborate only where it pays"


# ---- the page -----------------------------------------------------------------------------------


def draw_demo(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Every figure in both themes."""
    names = drawn_routers(record)
    drawn = draw_panels(study, names, "Digits in four quadrants: what each budget buys")
    return drawn | {"noisy": draw_regime(study, names, study.regimes[-1], "The same under noise")}


def demo_page(results: Mapping[str, Any], record: Record, pictures: Pictures) -> str:
    """Write the whole report, figures inside."""
    head = results["headline"]
    noisy = list(results["regimes"])[-1]
    body = [
        route_cards(results),
        html.note(f"{against(head)} {deployed(head)}"),
        html.section(
            "What happens here",
            html.paragraph(
                f"Each of {results['test_samples']} handwritten digits is cut into four quadrants, and each quadrant "
                "belongs to one party, which does not share it. In Round 1 every party sends ten probabilities; "
                "pooled, they give the weak answer. In Round 2 every party sends an embedding as well, "
                "and a model that sees all of them gives the strong answer. It is better, and costs more bytes."
            ),
            html.paragraph(
                "The router decides after Round 1, sample by sample, whether Round 2 is worth it. Its score is the "
                "accuracy it expects to gain; the samples with the highest scores are escalated, as many as the "
                "budget allows."
            ),
            _stories(record),
        ),
        html.section(
            "Every router, every budget",
            picture(
                pictures,
                "accuracy",
                "Accuracy against the escalation rate, a line a router",
                "Further up and further left is better. Squares: never and always escalating. The oracle knows which "
                "answers are wrong and bounds every router; random is what a budget buys without a score. Learning to "
                "defer trains Round-1 models of its own (α chosen on calibration data) and may start elsewhere.",
            ),
            shown_table(tables.accuracy_table(results, "0")),
            html.paragraph("One seed and a small test set: differences below a point or so are chance.", small=True),
        ),
        html.section(
            "What is escalated",
            html.paragraph(
                "Most answers do not change in Round 2. A good router spends its budget on samples whose error the "
                "strong route corrects (escalation precision, EP) and not on those it leaves as they are (neutral "
                "escalations, NE)."
            ),
            '<div class="pair">',
            picture(
                pictures, "EP", "EP against the escalation rate", "Higher is better: escalations that correct an error."
            ),
            picture(
                pictures, "NE", "NE against the escalation rate", "Lower is better: escalations that change nothing."
            ),
            "</div>",
            shown_table(tables.budget_table(results, "0", OURS)),
        ),
        html.section(
            "Why calibration matters",
            html.paragraph(
                "A mean of several posteriors is seldom as sure as it is right. An expected gain can only be "
                "computed from probabilities that mean what they say, so the router first learns, on held-out samples, "
                "what the pooled posterior is worth."
            ),
            picture(
                pictures,
                "reliability",
                "Reliability diagrams before and after calibration",
                "On the dotted line, a posterior that says 80 % is right in 80 % of the cases. ECE is the mean "
                "distance from it. These are test samples, which calibrated nothing; a few hundred calibration samples "
                "bring the posterior nearer to the line, not onto it.",
            ),
        ),
        html.section(
            "When views are degraded",
            html.paragraph(
                f"The same models and the same routers, with noise on the images of {noisy} of the "
                f"{results['class_count']} classes at test time, which nothing was trained or calibrated for."
            ),
            picture(pictures, "noisy", "Accuracy against the escalation rate under noise", "Nothing was fitted anew."),
            shown_table(tables.deployed_table(results, (OURS,))),
            html.paragraph(
                "Threshold “cross-fitted” is the default, “calibration” the paper's quantile. A threshold from clean "
                "data need not hold its budget under noise: samples that have become more doubtful score higher.",
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
    """Three test samples: one escalated for good reason, one kept for good reason, one that was missed."""
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
    told = []
    for title, rows, rank in kinds:
        if not rows.any():
            continue
        n = int(np.flatnonzero(rows)[rank[rows].argmax()])
        names = record.class_names
        answer, truth = int(decision.weak_prediction[n]), int(test.labels[n])
        right = answer == truth
        gain, threshold = signed(decision.score[n], 0), signed(decision.threshold, 0)
        told.append(
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
    return f'<div class="stories">{"".join(told)}</div>{html.paragraph(bars, small=True)}'


def _images(record: Record) -> FloatArray | None:
    """The test images, (N, 8, 8), if scikit-learn is here to give them."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return None
    images: FloatArray = load_digits().images[np.asarray(record.test.ids, dtype=int)] / 16
    return images
