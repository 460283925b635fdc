"""One payment in a hundred is fraud: under accuracy the router says "never collaborate", under recall otherwise.

A bank and a merchant each see half of what a payment looks like. A missed fraud costs 100, a false alarm 5.
"""

import numpy as np

import gainroute as gr

rng = np.random.default_rng(0)
n = 60_000
fraud = (rng.random(n) < 0.01).astype(int)
signal = rng.normal(size=(2, n)) + 0.5 * fraud  # what each party sees: a hint, no more


def probability(evidence: np.ndarray, shift: float) -> np.ndarray:
    """P(fraud | a normal observation whose mean is shifted by `shift` under fraud)."""
    likelihood = 0.01 / 0.99 * np.exp(shift * evidence - shift**2 / 2)
    return likelihood / (1 + likelihood)


local = np.stack([np.stack([1 - p, p], axis=1) for p in (probability(s, 0.5) for s in signal)])
strong = (rng.random(n) < np.where(fraud, 0.9, 0.05)).astype(int)  # finds 9 of 10, with 5 % false alarms

calibration, new = slice(0, 30_000), slice(30_000, n)
truth = fraud[new]
utility = np.array([[0.0, -5.0], [-100.0, 0.0]])  # rows: legitimate, fraud; columns: what we answer

print("a budget of 20 %, never paying for an expected loss (min_gain=0):")
for name, valued in (("accuracy", None), ("cost of errors", utility)):
    router = gr.ExpectedGainRouter(budget=0.2, min_gain=0.0, utility=valued)
    router.fit(local[:, calibration], fraud[calibration], strong[calibration])
    decision = router.route(local[:, new])
    answer = router.answer(decision, strong[new][decision.escalate]).prediction
    cost = -utility[truth, answer].mean()
    print(
        f"  routed by {name:14}: {decision.escalate.mean():5.1%} escalated, accuracy {(answer == truth).mean():.2%}, "
        f"fraud found {(answer[truth == 1] == 1).mean():5.1%}, cost a payment {cost:.2f}"
    )
