"""One name per router in tables, figures and reports; JSON keeps the keys it has always had."""

from __future__ import annotations

__all__ = ["shown_name"]

_SHOWN = {
    "ours (total)": "our default",  # ExpectedGainRouter(), with its own answers on both routes
    "ours (routing only)": "our default (routing only)",  # its score, with the paper's answers on both routes
    "expected-gain (paper)": "expected gain",  # ExpectedGainRouter.paper()
    "expected-gain (tuned)": "expected gain, tuned",
    "calibrated-confidence": "calibrated confidence",
    "learned-gain": "learned gain",
    "quality": "quality estimate",
    "two-stage-defer": "two-stage defer",
    "oracle (needs labels)": "oracle",
}


def shown_name(key: str) -> str:
    """The name to show for the router that results list as `key`; a router from outside the package keeps its own."""
    return _SHOWN.get(key, key)
