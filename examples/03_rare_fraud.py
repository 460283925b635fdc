"""One payment in a hundred is fraud: under accuracy the router says "never collaborate", under cost otherwise.

A bank and a merchant each see half of what a payment looks like. A missed fraud costs 100, a false alarm 5. The strong
route gives alarms, or its posterior: with the posterior, both routes give the answer that is expected to cost least.
"""

import numpy as np

import gainroute as gr

rng = np.random.default_rng(0)
n = 60_000
fraud = (rng.random(n) < 0.01).astype(int)
hints = rng.normal(size=(2, n)) + 0.5 * fraud  # what each party sees: a hint, no more
evidence = rng.normal(size=n) + 2.5 * fraud  # what both see together


def posterior(seen: np.ndarray, shift: float) -> np.ndarray:
    """P(legitimate), P(fraud) given a normal observation whose mean is shifted by `shift` under fraud, (N, 2)."""
    odds = 0.01 / 0.99 * np.exp(shift * seen - shift**2 / 2)
    return np.stack([1 / (1 + odds), odds / (1 + odds)], axis=1)


local = np.stack([posterior(hint, 0.5) for hint in hints])
strong = posterior(evidence, 2.5)
alarm = (evidence > 1.645).astype(int)  # finds 8 of 10, with 5 % false alarms

calibration, new = slice(0, 30_000), slice(30_000, n)
truth = fraud[new]
utility = np.array([[0.0, -5.0], [-100.0, 0.0]])  # rows: legitimate, fraud; columns: what we answer

print("a budget of 20 %, never paying for an expected loss (min_gain=0):")
for name, settings, given in (
    ("accuracy, alarms", {}, {"strong_prediction": alarm}),
    ("cost, alarms", {"utility": utility}, {"strong_prediction": alarm}),
    ("cost, argmax of the posterior", {"utility": utility, "answer_by": "argmax"}, {"strong_posterior": strong}),
    ("cost, posterior", {"utility": utility}, {"strong_posterior": strong}),
):
    router = gr.ExpectedGainRouter(budget=0.2, min_gain=0.0, **settings)
    router.fit(local[:, calibration], fraud[calibration], **{key: value[calibration] for key, value in given.items()})
    decision = router.route(local[:, new])
    (answers,) = given.values()
    answer = router.answer(decision, answers[new][decision.escalate]).prediction
    cost = -utility[truth, answer].mean()
    print(
        f"  routed by {name:29}: {decision.escalate.mean():5.1%} escalated, accuracy {(answer == truth).mean():.2%}, "
        f"fraud found {(answer[truth == 1] == 1).mean():5.1%}, cost per payment {cost:.2f}"
    )
