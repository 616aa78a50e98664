"""Spans of a request, as an exporter gets them."""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from hypothesis import given, settings
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from antiphon.errors import SettingError
from antiphon.observe.record import EdgeSpan, Playback, StageSpan, Timeline
from antiphon.observe.timelines import Summary
from antiphon.observe.tracing import MAX_ATTRIBUTE_LENGTH, Tracing, traces_url
from records import STARTED_UNIX_S, VOICE, timelines
from source import ROOT

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"


def spans_of(timeline: Timeline) -> list[ReadableSpan]:
    """What an exporter gets of one request."""
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    tracing.began(timeline.id, ())
    tracing.ended(timeline)
    assert tracing.close()
    return list(exporter.get_finished_spans())


def named(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    (span,) = [span for span in spans if span.name == name]
    return span


def since_start(nanoseconds: int | None) -> float:
    assert nanoseconds is not None
    return round(nanoseconds / 1e9 - STARTED_UNIX_S, 6)


def times(span: ReadableSpan) -> tuple[float, float]:
    return since_start(span.start_time), since_start(span.end_time)


def events(span: ReadableSpan) -> dict[str, float]:
    return {event.name: since_start(event.timestamp) for event in span.events}


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def headed(**headers: str) -> Timeline:
    return msgspec.structs.replace(VOICE, trace_headers=headers)


# --- the tree ---------------------------------------------------------------------------------


def test_a_request_is_a_span_with_one_for_each_stage_and_edge_below() -> None:
    spans = spans_of(VOICE)
    root = named(spans, "chat voice")
    children = [span for span in spans if span is not root]
    assert [span.name for span in children] == [
        "stage thinker",
        "edge speech",
        "stage talker",
        "edge codes",
        "stage code2wav",
    ]
    assert root.parent is None
    assert root.kind is SpanKind.SERVER
    assert all(span.parent == root.context for span in children)
    assert {span.kind for span in children} == {SpanKind.INTERNAL}


def test_spans_last_as_long_as_what_they_stand_for() -> None:
    found = {span.name: times(span) for span in spans_of(VOICE)}
    assert found == {
        "chat voice": (0.0, 2.0),
        "stage thinker": (0.0, 0.75),
        "edge speech": (0.25, 1.25),
        "stage talker": (0.0, 1.5),
        "edge codes": (0.625, 1.75),
        "stage code2wav": (0.0, 2.0),
    }


def test_first_events_are_events_of_their_spans() -> None:
    spans = spans_of(VOICE)
    found = events(named(spans, "chat voice"))
    assert found == {"antiphon.first_text": 0.125, "antiphon.first_audio": 0.75}
    assert events(named(spans, "stage thinker")) == {"antiphon.first_output": 0.125}
    found = events(named(spans, "stage talker"))
    assert found == {"antiphon.first_input": 0.25, "antiphon.first_output": 0.5}
    assert events(named(spans, "edge speech")) == {
        "antiphon.edge.producer_first_output": 0.125,
        "antiphon.edge.first_chunk": 0.25,
        "antiphon.edge.first_used": 0.5,
        "antiphon.edge.consumer_first_output": 0.5,
    }


def test_links_lead_from_a_stage_to_what_it_was_given() -> None:
    spans = spans_of(VOICE)
    chain = ("stage thinker", "edge speech", "stage talker", "edge codes", "stage code2wav")
    assert links(named(spans, chain[0])) == []
    for before, behind in itertools.pairwise(chain):
        assert links(named(spans, behind)) == [id_of(named(spans, before))]


def test_a_split_edge_leads_to_each_part() -> None:
    thinker, talker, _ = VOICE.stages
    parts = tuple(msgspec.structs.replace(talker, part=part) for part in (0, 1))
    speech = msgspec.structs.replace(VOICE.edges[0], consumer_parts=(0, 1))
    timeline = msgspec.structs.replace(VOICE, stages=(thinker, *parts), edges=(speech,))
    spans = spans_of(timeline)
    edge = id_of(named(spans, "edge speech"))
    talkers = [span for span in spans if span.name == "stage talker"]
    assert [links(span) for span in talkers] == [[edge], [edge]]
    assert [(span.attributes or {})["antiphon.stage.part"] for span in talkers] == [0, 1]


def test_a_cache_that_is_handed_over_has_a_name_of_its_own() -> None:
    edge = msgspec.structs.replace(VOICE.edges[0], cache=True)
    spans = spans_of(msgspec.structs.replace(VOICE, edges=(edge,)))
    span = named(spans, "kv hand-off speech")
    assert (span.attributes or {})["antiphon.edge.kv_cache"] is True


# --- attributes and status --------------------------------------------------------------------


def test_attributes_of_the_request() -> None:
    root = named(spans_of(VOICE), "chat voice")
    assert dict(root.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "antiphon",
        "gen_ai.request.model": "voice",
        "gen_ai.response.id": "3fa80c220",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 16,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_to_first_token": 0.125,
        "antiphon.request.label": "mine",
        "antiphon.outcome": "stop",
        "antiphon.latency.time_to_first_audio": 0.75,
        "antiphon.rtf": 0.5,
        "antiphon.audio.seconds": 3.0,
        "antiphon.audio.continuous": True,
        "antiphon.audio.worst_underrun_s": 0.0,
    }
    assert root.status.status_code is StatusCode.UNSET


def test_attributes_of_stages_and_edges() -> None:
    spans = spans_of(VOICE)
    assert dict(named(spans, "stage talker").attributes or {}) == {
        "antiphon.stage.name": "talker",
        "antiphon.stage.replica_id": 0,
        "antiphon.stage.part": 0,
        "antiphon.stage.tokens": 120,
        "antiphon.stage.finish": "stop",
        "antiphon.stage.wait_s": 0.25,
        "antiphon.stage.queue_s": 0.25,
        "antiphon.stage.run_s": 1.0,
    }
    assert dict(named(spans, "edge codes").attributes or {}) == {
        "antiphon.edge.name": "codes",
        "antiphon.edge.producer": "talker",
        "antiphon.edge.consumer": "code2wav",
        "antiphon.edge.part": 0,
        "antiphon.edge.chunks": 6,
        "antiphon.edge.bytes": 9216,
        "antiphon.edge.kv_cache": False,
    }


def test_the_service_is_named_and_the_environment_may_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert spans_of(VOICE)[0].resource.attributes["service.name"] == "antiphon"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "speaker")
    assert spans_of(VOICE)[0].resource.attributes["service.name"] == "speaker"


def test_an_error_is_the_status_of_the_request_and_of_the_stage_it_came_from() -> None:
    thinker, talker, code2wav = VOICE.stages
    failed = msgspec.structs.replace(talker, finish="error")
    unfinished = msgspec.structs.replace(code2wav, first_s=None, last_s=None, finish=None)
    spans = spans_of(
        msgspec.structs.replace(
            VOICE,
            outcome="error",
            cause="payload",
            message="the payload is corrupt",
            stages=(thinker, failed, unfinished),
        )
    )
    root = named(spans, "chat voice")
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description == "the payload is corrupt"
    attributes = root.attributes or {}
    assert (attributes["error.type"], attributes["antiphon.cause"]) == ("payload", "payload")
    assert "gen_ai.response.finish_reasons" not in attributes
    failed_spans = [s.name for s in spans if s.status.status_code is StatusCode.ERROR]
    assert failed_spans == ["stage talker", "chat voice"]
    assert times(named(spans, "stage code2wav")) == (0.0, 2.0)


@pytest.mark.parametrize("outcome", ["abort", "interrupt"])
def test_what_a_caller_ended_is_no_error(outcome: str) -> None:
    spans = spans_of(msgspec.structs.replace(VOICE, outcome=outcome, cause="disconnect"))
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    attributes = named(spans, "chat voice").attributes or {}
    assert (attributes["antiphon.outcome"], attributes["antiphon.cause"]) == (outcome, "disconnect")


def test_a_long_label_is_cut() -> None:
    spans = spans_of(msgspec.structs.replace(VOICE, label="x" * 100_000))
    label = (named(spans, "chat voice").attributes or {})["antiphon.request.label"]
    assert label == "x" * MAX_ATTRIBUTE_LENGTH


@settings(max_examples=50, deadline=None)
@given(timelines())
def test_any_request_has_spans_within_its_own(timeline: Timeline) -> None:
    """An observer must not raise."""
    spans = spans_of(timeline)
    assert len(spans) == 1 + len(timeline.stages) + len(timeline.edges)
    end = since_start(named(spans, "chat voice").end_time)
    for span in spans:
        first, last = times(span)
        assert 0 <= first <= last <= end + 1e-5


# --- trace context ----------------------------------------------------------------------------


def test_a_request_continues_its_callers_trace() -> None:
    spans = spans_of(headed(traceparent=SAMPLED, tracestate="vendor=1"))
    root = named(spans, "chat voice")
    assert root.parent is not None
    assert root.parent.is_remote
    assert f"{root.parent.span_id:016x}" == PARENT_ID
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE_ID}
    assert root.context is not None
    assert root.context.trace_state.to_header() == "vendor=1"


def test_a_caller_who_does_not_sample_gets_no_spans() -> None:
    assert spans_of(headed(traceparent=NOT_SAMPLED)) == []


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{TRACE_ID.upper()}-{PARENT_ID}-01",
        f"{SAMPLED}-more",
        "0" * 100_000,
        "a\ud800",
    ],
)
def test_a_malformed_trace_context_begins_a_new_trace(traceparent: str) -> None:
    """W3C Trace Context 3.2.2.3: what cannot be parsed is as if it had not come."""
    spans = spans_of(headed(traceparent=traceparent, tracestate="vendor=1"))
    assert len(spans) == 6
    assert named(spans, "chat voice").parent is None


@pytest.mark.parametrize("tracestate", ["", "=", "a=b" * 10_000, "no pair", "ü=1"])
def test_a_malformed_trace_state_is_left_out(tracestate: str) -> None:
    spans = spans_of(headed(traceparent=SAMPLED, tracestate=tracestate))
    root = named(spans, "chat voice")
    assert root.context is not None
    assert f"{root.context.trace_id:032x}" == TRACE_ID
    assert root.context.trace_state.to_header() == ""


def test_nothing_of_the_programs_own_tracing_is_touched() -> None:
    before = trace.get_tracer_provider()
    spans_of(VOICE)
    assert trace.get_tracer_provider() is before


# --- to a collector ---------------------------------------------------------------------------


class _Collector(HTTPServer):
    """Keeps what it is posted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[tuple[str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.posted.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[_Collector]:
    with _Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_closing_sends_what_is_left_over_http(collector: _Collector) -> None:
    tracing = Tracing.to(f"http://127.0.0.1:{collector.server_port}")
    tracing.ended(VOICE)
    assert tracing.close()
    ((path, body),) = collector.posted
    assert path == "/v1/traces"
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    names = [span.name for scope in of_resource.scope_spans for span in scope.spans]
    assert sorted(names) == sorted(span.name for span in spans_of(VOICE))


def test_closing_does_not_wait_for_a_collector_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing = Tracing.to(f"http://127.0.0.1:{silent.getsockname()[1]}")
        tracing.ended(VOICE)
        before = time.monotonic()
        assert not tracing.close(0.1)
        assert time.monotonic() - before < 2


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://collector:4318/otlp/v1/traces", "http://collector:4318/otlp/v1/traces"),
    ],
)
def test_an_address_without_a_path_gets_the_protocols(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["", "collector:4318", "grpc://c:1", "http://", "http://c:x"])
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingError, match="OTLP endpoint"):
        Tracing.to(endpoint)


# --- what it costs ----------------------------------------------------------------------------


def in_fresh_interpreter(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_off_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, antiphon.cli.main, antiphon.orchestrator.omni, antiphon.observe.tracing\n"
        "import antiphon.serve.traces\n"
        "sys.exit(any(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    in_fresh_interpreter(program)


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter"])
def test_without_the_library_the_error_says_what_to_install(missing: str) -> None:
    """As on a machine that has it not, or the interfaces alone: the import fails."""
    program = (
        "import sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Hidden(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from antiphon.errors import OperatorError\n"
        "from antiphon.observe.tracing import Tracing\n"
        "try:\n"
        "    Tracing.to('http://127.0.0.1:4318')\n"
        "except OperatorError as error:\n"
        "    print(error)\n"
    )
    assert "pip install antiphon[tracing]" in in_fresh_interpreter(program)


# --- the document -----------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")


def test_every_event_and_attribute_is_documented() -> None:
    thinker, *others = VOICE.stages
    failed = msgspec.structs.replace(thinker, finish="error")
    timeline = msgspec.structs.replace(
        VOICE, outcome="error", cause="payload", ttfi_s=1.0, stages=(failed, *others)
    )
    names = {n for s in spans_of(VOICE) + spans_of(timeline) for n in (s.attributes or {})}
    names |= {event.name for span in spans_of(timeline) for event in span.events}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
    documented = set(re.findall(r"`((?:gen_ai|antiphon|error)\.[\w.]+)`", PAGE))
    assert documented == names


@pytest.mark.parametrize("kind", [Timeline, StageSpan, EdgeSpan, Playback, Summary])
def test_every_field_of_the_public_form_is_documented(kind: type[msgspec.Struct]) -> None:
    names = {field.name for field in msgspec.structs.fields(kind)} - {"trace_headers"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
