"""OpenTelemetry tracing: an observer that hands each request's spans to a collector.

Importing this module imports nothing of OpenTelemetry; making a `Tracing` does. It has a provider
of its own, so that nothing is changed for a program that traces by itself.
"""

from __future__ import annotations

import importlib.metadata
import threading
from typing import TYPE_CHECKING, Self
from urllib.parse import urljoin, urlsplit

from antiphon.errors import OperatorError, SettingError
from antiphon.observe.record import Timeline

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

CLOSE_TIMEOUT_S = 5.0
MAX_ATTRIBUTE_LENGTH = 1024  # characters; a caller's label may be of any length
_PATH = "/v1/traces"  # of OTLP over HTTP


class Tracing:
    """An Observer that makes spans of every request when it ends.

    `processor` gets the spans, on the observers' thread. The sampler is OpenTelemetry's default,
    which the environment may change (`OTEL_TRACES_SAMPLER`): what the caller has decided holds, and
    traces that begin here are all sampled. Raises OperatorError if OpenTelemetry is not installed.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        try:
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import SpanLimits, TracerProvider

            from antiphon.observe.spans import write_spans
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        version = importlib.metadata.version("antiphon")
        own = Resource.create({"service.name": "antiphon", "service.version": version})
        self._provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()),  # OTEL_SERVICE_NAME and the like
            span_limits=SpanLimits(max_span_attribute_length=MAX_ATTRIBUTE_LENGTH),
            shutdown_on_exit=False,  # it has no bound; `close` has
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("antiphon", version)
        self._write = write_spans

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Tracing to a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318.

        Spans leave in batches on a thread of their own; what a collector that is away or slow does
        not take is dropped and logged. `OTEL_EXPORTER_OTLP_HEADERS` and the like are obeyed.
        Raises SettingError for what is no address, OperatorError if OpenTelemetry is not installed.
        """
        url = traces_url(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        return cls(BatchSpanProcessor(OTLPSpanExporter(url)))

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        """Spans are made at the end, when everything is known."""

    def first_output(self, uid: str) -> None:
        """As `began`."""

    def refused(self, code: str) -> None:
        """What did not begin has no spans."""

    def ended(self, timeline: Timeline) -> None:
        self._write(self._tracer, timeline)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Send what is left; whether that was done in time. Blocks no longer than `timeout_s`."""
        # The library's own bound of 30 s cannot be set. The thread is a daemon: one that hangs in
        # a collector does not keep the process.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)
        return not closing.is_alive()


def traces_url(endpoint: str) -> str:
    """Where spans are posted to: `endpoint`, with OTLP's path if it has none.

    Raises SettingError for what is no http or https address.
    """
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        valid = False
    if not valid:
        raise SettingError(
            f"the OTLP endpoint is {endpoint!r}; give an address such as http://127.0.0.1:4318"
        )
    return urljoin(endpoint, _PATH) if parts.path in ("", "/") else endpoint


def _missing(error: ModuleNotFoundError) -> OperatorError:
    return OperatorError(
        f"tracing needs OpenTelemetry ({error.name} is missing); pip install antiphon[tracing]"
    )
