"""What the demo says: its headline, its figures, and the page that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gainroute import __version__
from gainroute.experiments import html, tables
from gainroute.experiments.records import Record
from gainroute.experiments.report import diagrams_of, lines_of
from gainroute.experiments.results import ANALYTICAL, ORACLE, REFERENCE, chosen_alpha, defer_name
from gainroute.experiments.summary import Study
from gainroute.figures import DARK, LIGHT, draw_panel, draw_reliability, encode, rate_panel
from gainroute.routers import ExpectedGainRouter
from gainroute.types import FloatArray

__all__ = ["TITLE", "against", "demo_page", "deployed", "draw_demo", "headline_of", "sentence"]

BUDGET = 0.2  # the default of every router
TITLE = "Collaborate only where it pays"


# ---- the numbers to see first -------------------------------------------------------------------


def headline_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The few numbers that matter most, as shares."""
    at = summary["rates"].index(BUDGET)
    router = summary["regimes"]["0"]["routers"][ANALYTICAL]
    accuracy = router["accuracy"]["mean"]
    full = accuracy[-1] - accuracy[0]
    apart = router["minus_confidence"]
    given = next(p for p in router["deployed"] if p["rule"] == "cross-fitted" and p["budget"] == BUDGET)
    return {
        "budget": BUDGET,
        "weak": accuracy[0],
        "accuracy": accuracy[at],
        "strong": accuracy[-1],
        "share_of_gain": (accuracy[at] - accuracy[0]) / full if full > 0 else None,
        "share_of_bytes": summary["bytes"][at] / summary["bytes"][-1],
        "minus_confidence": {key: apart[key][at] for key in ("mean", "low", "high")},
        "deployed_rate": given["rate"]["mean"],
        "deployed_accuracy": given["accuracy"]["mean"],
    }


def sentence(headline: Mapping[str, Any]) -> str:
    """Say in one sentence what the default budget buys."""
    budget, share = f"{100 * headline['budget']:.0f} %", headline["share_of_gain"]
    cost = f"{100 * headline['share_of_bytes']:.0f} % of the bytes"
    if share is None:
        return f"The strong route adds nothing here, so that escalating {budget} of the samples for {cost} cannot pay."
    return f"Escalating {budget} of the samples gives {100 * share:.0f} % of what always escalating gains, for {cost}."


def against(headline: Mapping[str, Any]) -> str:
    """Say how far confidence is behind, and whether that is chance."""
    apart = headline["minus_confidence"]
    words = (
        f"Against plain confidence at that budget: {tables.signed(apart['mean'])} points (95 % interval "
        f"{tables.signed(apart['low'])} to {tables.signed(apart['high'])})"
    )
    return words + (": more than chance explains." if apart["low"] > 0 else ": within chance on so few samples.")


def deployed(headline: Mapping[str, Any]) -> str:
    """Say what a threshold from calibration data really gave."""
    return (
        f"As deployed, with a threshold set on calibration data for a budget of {100 * headline['budget']:.0f} %, the "
        f"router escalated {100 * headline['deployed_rate']:.1f} % and was right in "
        f"{100 * headline['deployed_accuracy']:.1f} %."
    )


# ---- the page -----------------------------------------------------------------------------------


def draw_demo(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Every figure in both themes."""
    alpha = chosen_alpha(record)
    names = [ANALYTICAL, REFERENCE, "learned gain", *([] if alpha is None else [defer_name(alpha)]), "random", ORACLE]
    noisy = study.regimes[-1]
    panels = {
        "accuracy": rate_panel(
            lines_of(study, names, 0, "accuracy"), "accuracy", "Digits in four quadrants: what each budget buys"
        ),
        "EP": rate_panel(lines_of(study, names, 0, "EP"), "EP", "Are the right samples escalated?"),
        "NE": rate_panel(lines_of(study, names, 0, "NE"), "NE", "How many escalations are idle?"),
        "noisy": rate_panel(lines_of(study, names, noisy, "accuracy"), "accuracy", "The same under noise"),
    }
    drawn = {}
    for name, panel in panels.items():
        wide = name == "accuracy"
        size, legend = ((6.2, 4.3), "inside") if wide else ((4.6, 3.9), "below")
        drawn[name] = (
            draw_panel(panel, theme=LIGHT, size=size, legend=legend),
            draw_panel(panel, theme=DARK, size=size, legend=legend),
        )
    diagrams = {name: diagram for name, diagram in diagrams_of(study, 0).items() if name != "temperature"}
    named = {"clean": dict(zip(("before calibration", "after calibration"), diagrams.values(), strict=True))}
    drawn["reliability"] = draw_reliability(named, theme=LIGHT), draw_reliability(named, theme=DARK)
    return drawn


def demo_page(results: Mapping[str, Any], record: Record, pictures: Mapping[str, tuple[Any, Any]]) -> str:
    """Write the whole report, figures inside."""

    def picture(name: str, alt: str, caption: str) -> str:
        light, dark = pictures[name]
        narrow = name in ("reliability", "noisy")
        return html.figure(encode(light, "svg"), encode(dark, "svg"), alt, caption, narrow=narrow)

    def table(shown: tables.Table) -> str:
        return html.table(
            shown.header, shown.rows, caption=shown.caption, main=shown.main, faint=shown.faint, best=shown.best
        )

    head = results["headline"]
    size = dict(zip(results["rates"], results["bytes"], strict=True))
    noisy = list(results["regimes"])[-1]
    shown = [
        html.Card("Weak route", f"{100 * head['weak']:.1f} %", ("never escalate", f"{size[0.0]:,.0f} bytes a sample")),
        html.Card(
            "Expected-gain router", f"{100 * head['accuracy']:.1f} %",
            (f"escalate {100 * BUDGET:.0f} %", f"{size[BUDGET]:,.0f} bytes a sample"), main=True,
        ),
        html.Card(
            "Strong route", f"{100 * head['strong']:.1f} %", ("always escalate", f"{size[1.0]:,.0f} bytes a sample")
        ),
    ]  # fmt: skip
    budget = tables.budget_table(results, "0")
    body = [
        html.cards(shown),
        html.note(f"{against(head)} {deployed(head)}"),
        html.section(
            "What happens here",
            html.paragraph(
                f"Each of {results['test_samples']} handwritten digits is cut into four quadrants, and each quadrant "
                "belongs to another party, which shows it to nobody. In Round 1 every party sends ten probabilities; "
                "their mean gives a cheap answer, the weak route. In Round 2 every party sends an embedding as well, "
                "and a model that sees all of them answers: the strong route. It is better, and costs more bytes."
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
                "accuracy",
                "Accuracy against the escalation rate, a line a router",
                "Further up and further left is better. Squares: never and always escalating. The oracle knows which "
                "answers are wrong and bounds every router; random is what a budget buys without a score. Learning to "
                "defer trains Round-1 models of its own (α chosen on calibration data) and may start elsewhere.",
            ),
            table(tables.accuracy_table(results, "0")),
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
            picture("EP", "EP against the escalation rate", "Higher is better: escalations that correct an error."),
            picture("NE", "NE against the escalation rate", "Lower is better: escalations that change nothing."),
            "</div>",
            table(budget),
        ),
        html.section(
            "Why calibration matters",
            html.paragraph(
                "A mean of several posteriors is seldom as sure as it is right. An expected gain can only be "
                "computed from probabilities that mean what they say, so the router first learns, on held-out samples, "
                "what the pooled posterior is worth."
            ),
            picture(
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
            picture("noisy", "Accuracy against the escalation rate under noise", "Nothing was fitted anew."),
            table(tables.deployed_table(results, (ANALYTICAL,))),
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
        gain, threshold = tables.signed(decision.score[n], 0), tables.signed(decision.threshold, 0)
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
