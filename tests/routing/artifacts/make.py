"""Write the artifacts of the current version and what they answer. Run once a version; never overwrite old ones.

python tests/artifacts/make.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from synthetic import world  # noqa: E402

import gainroute as gr  # noqa: E402


def main() -> None:
    data, new = world(300, 3, 4, 0), world(60, 3, 4, 1)
    rng = np.random.default_rng(0)
    outputs, new_outputs = rng.dirichlet(np.ones(5), size=(3, 300)), rng.dirichlet(np.ones(5), size=(3, 60))
    made = {
        "expected_gain": (gr.ExpectedGainRouter(0.3), data.local, new.local),
        "paper": (gr.ExpectedGainRouter.paper(0.3), data.local, new.local),
        "defer": (gr.DeferRouter(0.3), outputs, new_outputs),
    }
    for name, (router, local, to_route) in made.items():
        path = HERE / f"{name}-{gr.__version__}.safetensors"
        if path.exists():
            sys.exit(f"{path.name} exists: an artifact of a released version is never overwritten")
        gr.save(router.fit(local, data.labels, data.strong), path)
        decision = router.route(to_route)
        expected = {
            "local_posteriors": to_route,
            "score": decision.score,
            "escalate": decision.escalate,
            "weak_prediction": decision.weak_prediction,
            "calibrated": decision.calibrated,
            "thresholds": np.array([router.threshold_for(b) for b in (0.0, 0.1, 0.4, 1.0)]),
        }
        save_file({k: np.ascontiguousarray(v) for k, v in expected.items()}, path.with_suffix(".expected.safetensors"))


if __name__ == "__main__":
    main()
