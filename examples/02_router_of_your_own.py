"""A router of your own is its score; budgets, thresholds, labels, saving and evaluation come with it."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import gainroute as gr


# In a package, an entry point of the group "gainroute.routers" registers it everywhere, `gainroute fit` included.
@gr.register_router("margin")
class MarginRouter(gr.Router):
    """Escalate where the two best classes are closest."""

    def score(self, round_one: gr.RoundOne) -> np.ndarray:
        ranked = np.sort(round_one.pooled, axis=1)
        return ranked[:, -2] - ranked[:, -1]


x, y = load_digits(return_X_y=True)
halves = [x[:, :32] / 16, x[:, 32:] / 16]  # two parties: the upper and the lower half of each digit
train, calibration, test = slice(0, 500), slice(500, 1100), slice(1100, None)
local = np.stack([LogisticRegression(max_iter=500).fit(h[train], y[train]).predict_proba(h) for h in halves])
strong = LogisticRegression(max_iter=500).fit(x[train] / 16, y[train]).predict(x / 16)

file = Path(tempfile.mkdtemp()) / "router.safetensors"
print("accuracy when 20 % of the samples are escalated")
for make in (MarginRouter, gr.ConfidenceRouter, gr.ExpectedGainRouter):
    gr.save(make(budget=0.2).fit(local[:, calibration], y[calibration], strong[calibration]), file)
    decision = gr.load(file).route(local[:, test])
    point = gr.evaluation.operating_point(decision.score, decision.weak_prediction, strong[test], y[test], rate=0.2)
    print(f"  {make.__name__:20} {point.accuracy:.1%}, of those escalated {point.precision:.1%} corrected")
