"""Traces: one per request, across coordinator and parties, by OpenTelemetry. Off unless configured.

The span in progress is in a context variable. Where there is none, the functions here do nothing; OpenTelemetry's SDK
is imported by `Tracing` only. Spans carry counts and the names of parties. They carry neither ids of samples nor any
text that a client or an error brought: an error is the name of its class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gainroute._version import __version__
from gainroute.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

__all__ = [
    "OpenSpan", "RequestTracingSettings", "Tracing", "TracingSettings",
    "batch", "current", "fail", "note", "open_tracing", "served", "span", "traceparent", "watched",
]  # fmt: skip

T = TypeVar("T")
EXPORT_SECONDS = 5.0  # for one message to the collector
OFF: AbstractContextManager[None] = nullcontext()  # may be entered any number of times
Kind = Literal["INTERNAL", "SERVER", "CLIENT"]
LONGEST = 128  # characters of a traceparent that are read; version 00 has 55


@dataclass(frozen=True, kw_only=True)
class TracingSettings:
    """Where spans are sent. A party traces the requests that its coordinator traces."""

    endpoint: str  # of a collector, OTLP over HTTP: http://127.0.0.1:4318/v1/traces

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")):
            example = "http://127.0.0.1:4318/v1/traces"
            raise SettingError(f"tracing: endpoint is {self.endpoint!r}; a URL is needed, such as {example}")


@dataclass(frozen=True, kw_only=True)
class RequestTracingSettings(TracingSettings):
    """Where spans are sent, and which requests are traced."""

    share: float = 1.0  # of the requests that bring no `traceparent`; one that does has decided already

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise SettingError(f"tracing: share is {self.share!r}; a share in [0, 1] is needed, such as 0.01")


class Tracing:
    """Makes the spans of one process, and sends them in the background.

    Parameters
    ----------
    endpoint
        URL of the collector.
    service, instance
        Names of the service and of this process, as the collector shows them.
    share
        Share of the requests without a `traceparent` that are traced.
    exporter
        Used instead of one for `endpoint`.
    """

    def __init__(
        self, endpoint: str, service: str, instance: str = "", share: float = 0.0, exporter: SpanExporter | None = None
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError as error:
            raise MissingExtraError("tracing", "otel") from error
        names = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
        # Not the provider of the process: other libraries would send spans of their own by it.
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({key: text for key, text in names.items() if text}),
            shutdown_on_exit=False,
        )
        exporter = exporter or OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("gainroute", __version__)

    def start(self, name: str, parent: Context | None, kind: Kind, **attributes: Any) -> OpenSpan:
        """Start a span."""
        from opentelemetry.trace import SpanKind

        return OpenSpan(self, self._tracer.start_span(name, parent, SpanKind[kind], _named(attributes)))

    def close(self) -> None:
        """Send what is left, and stop."""
        self._provider.shutdown()


@dataclass(frozen=True, eq=False)
class OpenSpan:
    """A span in progress."""

    tracing: Tracing
    span: Span

    def child(self, name: str, kind: Kind = "INTERNAL", **attributes: Any) -> OpenSpan:
        """Start a span below this one."""
        from opentelemetry.trace import set_span_in_context

        return self.tracing.start(name, set_span_in_context(self.span), kind, **attributes)

    def link(self, other: OpenSpan) -> None:
        """Link the two spans with each other."""
        self.span.add_link(other.span.get_span_context())
        other.span.add_link(self.span.get_span_context())

    def end(self, error: str = "") -> None:
        """End the span, as failed if there is an error."""
        if error:
            self.fail(error)
        self.span.end()

    def fail(self, error: str) -> None:
        """Mark the span as failed."""
        from opentelemetry.trace import Status, StatusCode

        self.span.set_status(Status(StatusCode.ERROR, error))


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"gainroute.{key}": value for key, value in attributes.items()}


_current: ContextVar[OpenSpan | None] = ContextVar("gainroute_span", default=None)


def open_tracing(settings: TracingSettings | None, service: str, instance: str = "") -> Tracing | None:
    """Return what makes spans; None if it is not configured."""
    if settings is None:
        return None
    share = settings.share if isinstance(settings, RequestTracingSettings) else 0.0
    return Tracing(settings.endpoint, service, instance, share)


def current() -> OpenSpan | None:
    """The span in progress."""
    return _current.get()


@contextmanager
def _within(opened: OpenSpan | None) -> Iterator[None]:
    """Make a span the one in progress, and end it at the end."""
    token, error = _current.set(opened), ""
    try:
        yield
    except BaseException as failure:
        error = type(failure).__name__
        raise
    finally:
        _current.reset(token)
        if opened is not None:
            opened.end(error)


def served(tracing: Tracing | None, name: str, parent: str, **attributes: Any) -> AbstractContextManager[None]:
    """The span of a request from outside, below the `traceparent` that it brought."""
    if tracing is None:
        return OFF
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": parent[:LONGEST]}
    context = TraceContextTextMapPropagator().extract(carrier) if parent else None
    return _within(tracing.start(name, context, "SERVER", **attributes))


def span(name: str, **attributes: Any) -> AbstractContextManager[None]:
    """A span below the one in progress."""
    opened = _current.get()
    return OFF if opened is None else _within(opened.child(name, **attributes))


def batch(requests: Iterable[OpenSpan | None]) -> AbstractContextManager[None]:
    """The span of a batch: in the trace of its first request that is traced, linked with those of the others."""
    opened = [request for request in requests if request is not None]
    if not opened:  # the task may have been started by a request that is traced
        return OFF if _current.get() is None else _within(None)
    first, *others = _sampled_first(opened)
    made = first.child("batch")
    for other in others:
        made.link(other)
    return _within(made)


def _sampled_first(opened: Sequence[OpenSpan]) -> list[OpenSpan]:
    return sorted(opened, key=lambda one: not one.span.is_recording())


def watched(name: str, call: Callable[[], Awaitable[T]], **attributes: Any) -> asyncio.Future[T]:
    """Start a call in a span that ends with it."""
    opened = _current.get()
    if opened is None:
        return asyncio.ensure_future(call())
    made = opened.child(name, "CLIENT", **attributes)
    token = _current.set(made)
    try:
        future = asyncio.ensure_future(call())
    finally:
        _current.reset(token)
    future.add_done_callback(partial(_end, made))
    return future


def _end(opened: OpenSpan, future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        opened.end("late")
        return
    error = future.exception()
    opened.end("" if error is None else type(error).__name__)


def note(**attributes: Any) -> None:
    """Add attributes to the span in progress."""
    opened = _current.get()
    if opened is not None:
        opened.span.set_attributes(_named(attributes))


def fail(error: str) -> None:
    """Mark the span in progress as failed."""
    opened = _current.get()
    if opened is not None:
        opened.fail(error)


def traceparent() -> str:
    """The W3C `traceparent` of the span in progress; empty if there is none."""
    opened = _current.get()
    if opened is None:
        return ""
    context = opened.span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
