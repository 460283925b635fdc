"""Posteriors in arrays, a router in three lines.

Three hospitals each hold one view of the same patients. They share class posteriors, which give a weak answer.
A model that fuses all three views gives a strong answer, at a cost. The router decides which patients are worth it.
"""

import numpy as np

import gainroute as gr

# What you have: posteriors (parties, samples, classes), labels, and the strong model's answers on held-out samples.
rng = np.random.default_rng(0)
labels = rng.integers(4, size=2000)
logits = rng.normal(size=(3, 2000, 4)) * 2 + 1.8 * np.eye(4)[labels]
posteriors = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
strong = np.where(rng.random(2000) < 0.92, labels, rng.integers(4, size=2000))

calibration, new = slice(0, 1000), slice(1000, 2000)

router = gr.ExpectedGainRouter(budget=0.2).fit(posteriors[:, calibration], labels[calibration], strong[calibration])
decision = router.route(posteriors[:, new])
answer = router.answer(decision, strong[new][decision.escalate])

truth = labels[new]
print(f"weak answers right:      {(decision.weak_prediction == truth).mean():.1%}")
print(f"strong answers right:    {(strong[new] == truth).mean():.1%}")
print(f"routed answers right:    {(answer.prediction == truth).mean():.1%}, {decision.escalate.mean():.1%} escalated")
print("expected rate:           {:.1%} ({:.1%} – {:.1%})".format(*router.expected_rate_))
print("\nwhy the first sample is kept or escalated:")
print(router.explain(posteriors[:, 1000]))
