"""One small model, one big model: the big one is called only where it is expected to help."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB

import gainroute as gr

x, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(x))
train, calibration, test = order[:700], order[700:1200], order[1200:]

small = GaussianNB(var_smoothing=1e-2).fit(x[train], y[train])
big = RandomForestClassifier(300, random_state=0).fit(x[train], y[train])

router = gr.ExpectedGainRouter(budget=0.2)
router.fit(small.predict_proba(x[calibration]), y[calibration], big.predict(x[calibration]))

predict = gr.cascade(small.predict_proba, big.predict_proba, router)
found = predict(x[test])

print(f"small model alone  {(small.predict(x[test]) == y[test]).mean():.1%}")
print(f"big model alone    {(big.predict(x[test]) == y[test]).mean():.1%}")
print(
    f"cascade            {(found.prediction == y[test]).mean():.1%}, big model called for {found.escalated.mean():.1%}"
)
