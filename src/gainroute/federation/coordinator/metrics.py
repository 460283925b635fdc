"""Prometheus metrics; every coordinator has its own registry."""

from __future__ import annotations

from collections import Counter as Count
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gainroute.federation.coordinator.budget_control import control_status
from gainroute.federation.coordinator.monitoring.drift import ALARMS
from gainroute.federation.coordinator.monitoring.statistics import LiveStatistics
from gainroute.federation.coordinator.outcome import Outcome, degraded_reasons, round_of
from gainroute.federation.coordinator.rounds import Replies

if TYPE_CHECKING:
    from gainroute.federation.coordinator.coordinator import Coordinator

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 4, 16, 64, 256, 1024, 4096)
GAUGES = {
    "queue_samples": "Samples admitted and not yet answered.",
    "threshold": "Threshold in use.",
    "budget": "Budget in use; NaN where a threshold was set.",
    "log_ok": "1 if the last write of the decision log succeeded.",
    "rate": "Share of the last 1,000 samples for which Round 2 was asked; NaN before the first.",
    "controller_on": "1 if the budget controller moves the threshold.",
    "controller_bound": "Bound on the distance of the rate from the budget.",
    "controller_explored": "Samples escalated at random since the controller started.",
    "controller_capped": "Escalations stopped by the cap since the controller started.",
    "protection": "Gain required while collaboration hurts; NaN if there is no such floor.",
    "drift_distance": "Largest difference of the distribution functions of scores, now and in calibration.",
    "drift_limit": "Distance above which the scores differ from calibration.",
    "drift_stability_index": "Population stability index of the scores.",
    "drift_fixed_rate": "Share of the last window that the fixed threshold would escalate.",
    "drift_labels": "Labels seen since the monitor started.",
    "drift_calibration_error": "Expected calibration error of the weak answers, over recent labels.",
    "drift_confidence_gap": "Accuracy of the weak answers minus their calibrated confidence.",
    "drift_evidence": "E-value against collaboration; an alarm is raised at drift_evidence_limit.",
    "drift_evidence_limit": "Evidence at which the collaboration alarm is raised.",
    "shadow_loaded": "1 while a shadow router is loaded.",
    "shadow_samples": "Live samples scored by it.",
    "shadow_agreement": "Share of them on which both routers decide the same way.",
    "shadow_rate": "Share of them that the shadow router would escalate.",
    "shadow_difference": "Estimated accuracy of the shadow router minus that of the router in use, at the same rate.",
    "shadow_difference_low": "Lower end of its interval.",
    "shadow_difference_high": "Upper end of its interval.",
}

PARTY_GAUGES = {
    "agreement": "Agreement of a party with the others, over recent samples.",
    "reference_agreement": "The same in calibration.",
    "confidence": "Mean confidence of a party, over recent samples.",
    "changed": "1 if a party is named by the alarm `parties`.",
}


class _Series(dict[tuple[str, ...], Any]):
    """The series of a metric by labels, cached: the library's look-up takes longer than counting."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        found = self[labels] = self._metric.labels(*labels)
        return found


class Metrics:
    """Counters, histograms and gauges; `live`, the statistics of the dashboard, is updated at the same time."""

    def __init__(self, live: LiveStatistics) -> None:
        self._live = live
        own: dict[str, Any] = {"namespace": "gainroute", "registry": CollectorRegistry()}
        self.registry: CollectorRegistry = own["registry"]
        self._requests = _Series(Counter("requests", "Inference requests by HTTP status.", ("status",), **own))
        self._samples = _Series(Counter("samples", "Samples answered, by kind of route.", ("route",), **own))
        self._degraded = Counter("degraded", "Degraded answers, by reason.", ("reason",), **own)
        self._escalations = Counter("escalations", "Samples for which Round 2 was asked.", **own)
        self._bytes = _Series(Counter("payload_bytes", "Payload received from parties.", ("party", "round"), **own))
        self._failures = Counter("party_failures", "Rounds that a party did not answer.", ("party", "round"), **own)
        self._unlogged = Counter("log_failures", "Requests whose decisions could not be written.", **own)
        self._round = _Series(
            Histogram("round_seconds", "Time until all parties had answered.", ("round",), buckets=SECONDS, **own)
        )
        self._request = Histogram(
            "request_seconds", "Time of an inference request, log included.", buckets=SECONDS, **own
        )
        self._batch = Histogram("batch_samples", "Samples in a batch.", buckets=SIZES, **own)
        self._up = Gauge("party_up", "1 if a party is healthy.", ("party",), **own)
        self._circuit = Gauge(
            "party_circuit_open", "1 while a party is not asked, because it did not answer.", ("party", "round"), **own
        )
        self._days = Gauge("certificate_days", "Days until a certificate expires.", ("certificate",), **own)
        self._party_drift = {
            name: Gauge(f"drift_party_{name}", text, ("party",), **own) for name, text in PARTY_GAUGES.items()
        }
        self._alarm = Gauge("drift_alarm", "1 while an alarm is raised.", ("alarm",), **own)
        self._gauges = {name: Gauge(name, text, **own) for name, text in GAUGES.items()}

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
            self._samples["degraded" if reasons else round_of(route),].inc(count)
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

    def render(self, coordinator: Coordinator) -> bytes:
        """Render all metrics as text."""
        monitor, deployment = coordinator.monitor, coordinator.deployment
        drift, shadow, control = monitor.drift.status(), monitor.shadow.status() or {}, deployment.control
        helps, compared = drift.get("collaboration") or {}, shadow.get("comparison") or {}
        found = {
            "queue_samples": coordinator.batcher.in_flight,
            "threshold": deployment.router.threshold_ if control is None else control.controller.threshold,
            "budget": deployment.point.budget,
            "log_ok": not coordinator.log.error,
            "rate": self._live.rate(1000)["rate"],
            "protection": deployment.floor,
            "drift_evidence": helps.get("e_value"),
            "drift_evidence_limit": helps.get("limit"),
            "shadow_loaded": bool(shadow),
            "shadow_rate": shadow.get("new_rate"),
            "shadow_difference": compared.get("difference"),
            "shadow_difference_low": compared.get("low"),
            "shadow_difference_high": compared.get("high"),
        }
        for prefix, values, names in (
            ("controller_", control_status(control), ("on", "bound", "explored", "capped")),
            ("drift_", drift.get("scores") or {}, ("distance", "limit", "stability_index", "fixed_rate")),
            ("drift_", drift, ("labels", "calibration_error", "confidence_gap")),
            ("shadow_", shadow, ("samples", "agreement")),
        ):
            found |= {prefix + name: values.get(name) for name in names}
        for name, gauge in self._gauges.items():
            value = found[name]
            gauge.set(float("nan") if value is None else float(value))
        for name in ALARMS:
            self._alarm.labels(name).set(float(name in monitor.drift.alarms))
        for party, drifted in monitor.drift.parties.items():
            values = (drifted.agreement, drifted.reference_agreement, drifted.confidence, bool(drifted.changed))
            for party_gauge, value in zip(self._party_drift.values(), values, strict=True):
                party_gauge.labels(party).set(float(value))
        for link in coordinator.parties.links.values():
            self._up.labels(link.name).set(float(link.state == "ok"))
            for number, circuit in link.circuits.items():
                self._circuit.labels(link.name, str(number)).set(float(circuit.state != "closed"))
        for name, days in (coordinator.certificates() if coordinator.certificates is not None else {}).items():
            self._days.labels(name).set(days)
        return generate_latest(self.registry)
