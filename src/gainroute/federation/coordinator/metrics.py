"""Prometheus metrics; every coordinator has its own registry."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gainroute.federation.coordinator.budget_control import control_status
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.monitoring.drift import ALARMS, LiveDrift
from gainroute.federation.coordinator.monitoring.monitor import Monitor
from gainroute.federation.coordinator.monitoring.statistics import LiveStatistics
from gainroute.federation.coordinator.outcome import Outcome, degraded_reasons
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.rounds import Replies

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 4, 16, 64, 256, 1024, 4096)
PREFIX = "gainroute"


class _Series(dict[tuple[str, ...], Any]):
    """The series of a metric by labels, cached: the library's look-up takes longer than counting."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        found = self[labels] = self._metric.labels(*labels)
        return found


class Metrics:
    """Counters, histograms and gauges.

    Parameters
    ----------
    live
        Statistics for the dashboard, updated at the same time.
    """

    def __init__(self, live: LiveStatistics) -> None:
        self.registry = registry = CollectorRegistry()
        self._live = live

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, namespace=PREFIX, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram(name, text, labels, namespace=PREFIX, registry=registry, buckets=buckets)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, namespace=PREFIX, registry=registry)

        self._requests = _Series(counter("requests", "Inference requests by HTTP status.", ("status",)))
        self._samples = _Series(counter("samples", "Samples answered, by kind of route.", ("route",)))
        self._degraded = counter("degraded", "Degraded answers, by reason.", ("reason",))
        self._escalations = counter("escalations", "Samples for which Round 2 was asked.")
        self._bytes = _Series(counter("payload_bytes", "Payload received from parties.", ("party", "round")))
        self._failures = counter("party_failures", "Rounds that a party did not answer.", ("party", "round"))
        self._unlogged = counter("log_failures", "Requests whose decisions could not be written.")
        self._round = _Series(histogram("round_seconds", "Time until all parties had answered.", SECONDS, ("round",)))
        self._request = histogram("request_seconds", "Time of an inference request, log included.", SECONDS)
        self._batch = histogram("batch_samples", "Samples in a batch.", SIZES)
        self._queue = gauge("queue_samples", "Samples admitted and not yet answered.")
        self._threshold = gauge("threshold", "Threshold in use.")
        self._budget = gauge("budget", "Budget in use; NaN where a threshold was set.")
        self._up = gauge("party_up", "1 if a party is healthy.", ("party",))
        self._log = gauge("log_ok", "1 if the last write of the decision log succeeded.")
        self._days = gauge("certificate_days", "Days until a certificate expires.", ("certificate",))
        self._rate = gauge("rate", "Share of the last 1,000 samples for which Round 2 was asked; NaN before the first.")
        self._control = {
            name: gauge(f"controller_{name}", text)
            for name, text in (
                ("on", "1 if the budget controller moves the threshold."),
                ("bound", "Bound on the distance of the rate from the budget."),
                ("explored", "Samples escalated at random since the controller started."),
                ("capped", "Escalations stopped by the cap since the controller started."),
            )
        }
        self._protection = gauge(
            "protection", "Gain required while collaboration hurts; NaN if there is no such floor."
        )
        self._alarm = gauge("drift_alarm", "1 while an alarm is raised.", ("alarm",))
        self._drift = {
            name: gauge(f"drift_{name}", text)
            for name, text in (
                ("distance", "Largest difference of the distribution functions of scores, now and in calibration."),
                ("limit", "Distance above which the scores differ from calibration."),
                ("stability_index", "Population stability index of the scores."),
                ("fixed_rate", "Share of the last window that the fixed threshold would escalate."),
                ("labels", "Labels seen since the monitor started."),
                ("calibration_error", "Expected calibration error of the weak answers, over recent labels."),
                ("confidence_gap", "Accuracy of the weak answers minus their calibrated confidence."),
                ("evidence", "E-value against collaboration; an alarm is raised at drift_evidence_limit."),
                ("evidence_limit", "Evidence at which the collaboration alarm is raised."),
            )
        }
        self._shadow = {
            name: gauge(f"shadow_{name}", text)
            for name, text in (
                ("loaded", "1 while a shadow router is loaded."),
                ("samples", "Live samples scored by it."),
                ("agreement", "Share of them on which both routers decide the same way."),
                ("rate", "Share of them that the shadow router would escalate."),
                (
                    "difference",
                    "Estimated accuracy of the shadow router minus that of the router in use, at the same rate.",
                ),
                ("difference_low", "Lower end of its interval."),
                ("difference_high", "Upper end of its interval."),
            )
        }

    def batch(self, samples: int) -> None:
        """Count a batch."""
        self._batch.observe(samples)

    def executed(self, samples: int, seconds: float, requests: int, waited: float) -> None:
        """Count a batch that was answered; see `LiveStatistics.executed`."""
        self._live.executed(samples, seconds, requests, waited)

    def round(self, number: int, asked: Replies) -> None:
        """Count a round."""
        label = str(number)
        self._round[label,].observe(asked.seconds)
        self._live.latency(f"round{number}", asked.seconds)
        for party, size in asked.payload.items():
            self._bytes[party, label].inc(size)
            self._live.bytes[number] += size
        for party in asked.failed:
            self._failures.labels(party, label).inc()

    def answered(self, outcome: Outcome, seconds: float, sample_bytes: int | None) -> None:
        """Count the answers to a request."""
        self._live.answered(outcome, sample_bytes)
        self._live.latency("request", seconds)
        self._live.spent["success"].add(seconds)
        self._request.observe(seconds)
        self._escalations.inc(int(outcome.wanted.sum()))
        for route, count in Count(outcome.route).items():
            reasons = degraded_reasons(route)
            self._samples["degraded" if reasons else route,].inc(count)
            for reason in reasons:
                self._degraded.labels(reason).inc(count)

    def requested(self, status: int, seconds: float) -> None:
        """Count a request by its HTTP status."""
        self._requests[str(status),].inc()
        if status != 200:
            self._live.spent["fail"].add(seconds)

    def unlogged(self) -> None:
        """Count a request whose decisions could not be written."""
        self._unlogged.inc()

    def render(
        self,
        *,
        in_flight: int,
        deployment: Deployment,
        monitor: Monitor,
        parties: PartyLinks,
        log_ok: bool,
        certificates: Callable[[], Mapping[str, float]] | None,
    ) -> bytes:
        """Render all metrics as text."""
        self._queue.set(in_flight)
        budget, control = deployment.point.budget, deployment.control
        self._threshold.set(deployment.router.threshold_ if control is None else control.controller.threshold)
        self._budget.set(_number(budget))
        self._rate.set(_number(self._live.rate(1000)["rate"]))
        self._protection.set(_number(deployment.floor))
        _set(self._control, control_status(control) | {"on": control is not None})
        self._drifted(monitor.drift)
        found = monitor.shadow.status() or {}
        compared = found.get("comparison") or {}
        _set(
            self._shadow,
            {"loaded": bool(found), "rate": found.get("new_rate"), "difference": compared.get("difference"),
             "difference_low": compared.get("low"), "difference_high": compared.get("high")}
            | {name: found.get(name) for name in ("samples", "agreement")},
        )  # fmt: skip
        self._log.set(float(log_ok))
        for link in parties.links.values():
            self._up.labels(link.name).set(float(link.state == "ok"))
        for name, days in (certificates() if certificates is not None else {}).items():
            self._days.labels(name).set(days)
        return generate_latest(self.registry)

    def _drifted(self, drift: LiveDrift) -> None:
        for name in ALARMS:
            self._alarm.labels(name).set(float(name in drift.alarms))
        found = drift.status()
        scores, helps = found.get("scores") or {}, found.get("collaboration") or {}
        _set(
            self._drift,
            {name: scores.get(name) for name in ("distance", "limit", "stability_index", "fixed_rate")}
            | {name: found.get(name) for name in ("labels", "calibration_error", "confidence_gap")}
            | {"evidence": helps.get("e_value"), "evidence_limit": helps.get("limit")},
        )


def _set(gauges: Mapping[str, Gauge], values: Mapping[str, float | None]) -> None:
    for name, gauge in gauges.items():
        gauge.set(_number(values.get(name)))


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
