"""A pool of your own: settings with `fit`, which returns a frozen dataclass that is called on (M, N, K) posteriors."""

from dataclasses import dataclass

import numpy as np

import gainroute as gr


@dataclass(frozen=True, eq=False)
class BestParty:
    """Believes one party; if that party is absent, the mean of the others."""

    party: int

    def __call__(self, local, present=None):
        pooled = local[self.party].astype(np.float64)
        if present is not None:
            pooled[~present[self.party]] = gr.pool_mean(local, present)[~present[self.party]]
        return pooled


@gr.register_pool("best-party")  # in a package: an entry point of the group "gainroute.pools"
@dataclass(frozen=True)
class BestPartyPooling:
    """Chooses the party that is right most often on the calibration samples."""

    fitted_types = (BestParty,)  # what a saved router may hold

    def fit(self, local, labels, weight):
        return BestParty(int(np.argmax((local.argmax(axis=2) == labels) @ weight)))


rng = np.random.default_rng(0)
labels = rng.integers(3, size=1000)
local = rng.dirichlet(np.ones(3), size=(2, 1000)) + np.array([0.8, 0.2])[:, None, None] * np.eye(3)[labels]
local /= local.sum(axis=2, keepdims=True)
for pooling in ("mean", "log-linear", "best-party"):
    router = gr.ExpectedGainRouter(budget=0.2, pooling=pooling).fit(local, labels, labels)
    print(f"{pooling:12} {(router.route(local).weak_prediction == labels).mean():.1%} of the weak answers are right")
