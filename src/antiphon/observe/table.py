"""The one table of metrics: what `/metrics` shows of Antiphon itself, and what it means.

The Prometheus families, docs/metrics.md and the check of the Grafana dashboard are made of it.
vLLM's own metrics stand beside these under `vllm:`. Ours are never under that prefix: vLLM removes
from its registry whatever begins with it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

PREFIX = "antiphon:"
MODEL = "model_name"  # on everything, as vLLM and its dashboards name it
PLACE = ("stage", "replica")  # on what one engine reports, vLLM's own metrics included


class Kind(enum.StrEnum):
    """As Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(enum.StrEnum):
    """What a metric is made of; the headings of the page."""

    REQUESTS = "Requests, counted when they end"
    STAGES = "Parts of requests at stages and on edges, counted when the request ends"
    NOW = "The pipeline, at the moment of the scrape"
    ENGINES = "What stages report, at the moment of the scrape"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `labels` do not name MODEL, which all have."""

    name: str
    kind: Kind
    source: Source
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (MODEL, *self.labels)

    @property
    def unit(self) -> str:
        """What the name says: seconds, bytes, chunks; empty for a plain number."""
        stem = self.name.removesuffix("_total")
        return next((u for u in ("seconds", "bytes", "chunks", "tokens") if stem.endswith(u)), "")


# From what a machine without accelerator needs down to a single decode step on one.
_STEPS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_WAITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
_WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_GAPS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # 0.1: core.continuity's limit
_RATIO = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_R, _S, _N, _E = Source.REQUESTS, Source.STAGES, Source.NOW, Source.ENGINES
_ENTRY = ("entry",)
_EDGE = ("edge",)
_OUT = (*PLACE, "edge")  # of an edge, at the stage that it leaves

# --- requests -------------------------------------------------------------------------------------

RUNNING = Metric(
    "requests_running", _G, _R, "Requests and segments of sessions that have no outcome yet."
)
WAITING = Metric(
    "requests_waiting", _G, _R, "Those of the running ones that have brought no output yet."
)
REQUESTS = Metric(
    "requests_total",
    _C,
    _R,
    "Requests and segments of sessions by outcome: stop and length have finished, interrupt and"
    " abort were wanted, error has failed.",
    (*_ENTRY, "outcome"),
)
FAILURES = Metric("request_failures_total", _C, _R, "Failed requests by error code.", ("code",))
TIMEOUTS = Metric(
    "timeouts_total",
    _C,
    _R,
    "Those of the failed requests whose time ran out: deadline_exceeded is the request's own"
    " deadline, stage_input_timeout a stage's wait for its input.",
    ("reason",),
)
ABORTS = Metric(
    "aborts_total",
    _C,
    _R,
    "Aborted requests by who wanted it: request is a call for it, disconnect a caller that left.",
    ("cause",),
)
REJECTIONS = Metric(
    "admission_rejections_total",
    _C,
    _R,
    "Requests that were not begun, by error code: overloaded is the bound of a stage.",
    ("reason",),
)
PROMPT_TOKENS = Metric("prompt_tokens_total", _C, _R, "Tokens of prompts.", _ENTRY)
OUTPUT_TOKENS = Metric(
    "output_tokens_total", _C, _R, "Tokens of the stage that writes the text.", _ENTRY
)
TTFT = Metric("time_to_first_token_seconds", _H, _R, "TTFT: to the first text.", _ENTRY, _WAITS_S)
TTFA = Metric("time_to_first_audio_seconds", _H, _R, "TTFA: to the first sound.", _ENTRY, _WAITS_S)
TTFI = Metric("time_to_first_image_seconds", _H, _R, "To the first picture.", _ENTRY, _WHOLE_S)
ITL = Metric(
    "inter_token_latency_seconds",
    _H,
    _R,
    "ITL: between two arrivals of text, with all that a step has brought as one.",
    _ENTRY,
    _STEPS_S,
)
TPOT = Metric(
    "request_time_per_output_token_seconds",
    _H,
    _R,
    "TPOT: from the first text to the last, for each token behind the first arrival.",
    _ENTRY,
    _STEPS_S,
)
E2EL = Metric(
    "e2e_request_latency_seconds",
    _H,
    _R,
    "E2EL: from submission to the end, of requests that finished.",
    _ENTRY,
    _WHOLE_S,
)
RTF = Metric(
    "real_time_factor",
    _H,
    _R,
    "RTF: seconds to the end for each second of sound, of requests that finished.",
    _ENTRY,
    _RATIO,
)
AUDIO = Metric("audio_seconds_total", _C, _R, "Seconds of sound that were given.", _ENTRY)
AUDIO_GAP = Metric(
    "audio_chunk_gap_seconds", _H, _R, "Between two arrivals of sound.", _ENTRY, _WAITS_S
)
UNDERRUN = Metric(
    "audio_underrun_seconds",
    _H,
    _R,
    "Silence that a listener hears, who plays from the first sound on, of each request with sound.",
    _ENTRY,
    _GAPS_S,
)
CONTINUOUS = Metric(
    "audio_continuity_ok_total",
    _C,
    _R,
    "Requests with sound in which no single silence was longer than 0.1 s.",
    _ENTRY,
)

# --- parts of requests ----------------------------------------------------------------------------

STAGE_QUEUE = Metric(
    "stage_queue_seconds", _H, _S, "From a part's input to its first output.", PLACE, _WAITS_S
)
STAGE_RUN = Metric(
    "stage_run_seconds", _H, _S, "From a part's first output to its end.", PLACE, _WHOLE_S
)
STAGE_TOKENS = Metric(
    "stage_tokens_total",
    _C,
    _S,
    "What parts have brought: tokens, or samples of sound and pixels of a generation stage.",
    PLACE,
)
EDGE_CHUNKS = Metric("edge_chunks_total", _C, _S, "Chunks that crossed an edge.", _EDGE)
EDGE_BYTES = Metric("edge_bytes_total", _C, _S, "Bytes of the chunks.", _EDGE)
EDGE_FIRST = Metric(
    "edge_first_chunk_seconds",
    _H,
    _S,
    "From the submission of the request to the first chunk on the edge.",
    _EDGE,
    _WAITS_S,
)
EDGE_TRANSFER = Metric(
    "edge_transfer_seconds",
    _H,
    _S,
    "From the first chunk on the edge until its consumer has used it up, its wait for a step"
    " included.",
    _EDGE,
    _WAITS_S,
)
KV_HANDOFF = Metric(
    "kv_handoff_seconds",
    _H,
    _S,
    "Of a KV cache: from when it was stored until its consumer has taken it.",
    _EDGE,
    _WAITS_S,
)

# --- now ------------------------------------------------------------------------------------------

STAGE_UP = Metric("stage_up", _G, _N, "1 for a replica that serves or sleeps, else 0.", PLACE)
RESTARTS = Metric("restarts_total", _C, _N, "Times that a replica was started again.", PLACE)
STAGE_REQUESTS = Metric(
    "stage_requests", _G, _N, "Requests that a stage has, running and waiting.", ("stage",)
)
STAGE_LIMIT = Metric(
    "stage_requests_limit", _G, _N, "How many it may have, where there is a bound.", ("stage",)
)
LATE_OUTPUTS = Metric(
    "late_outputs_total", _C, _N, "Outputs of stages that belonged to no request any more."
)
UNANSWERED = Metric(
    "scrapes_unanswered_total",
    _C,
    _N,
    "Scrapes in which a running stage gave no figures in time, so that it is missing in them.",
    PLACE,
)

# --- stages ---------------------------------------------------------------------------------------

STEPS = Metric("stage_steps_total", _C, _E, "Engine steps.", PLACE)
INTEGRITY_FAILURES = Metric(
    "integrity_failures_total",
    _C,
    _E,
    "Times that a replica, idle, found its own state to disagree; its log says what.",
    PLACE,
)
GATED = Metric(
    "stage_gated_requests", _G, _E, "Requests that are held until their input is there.", PLACE
)
STARVED = Metric(
    "stage_starved_total", _C, _E, "Waits in mid-stream for an input that was late.", PLACE
)
LATE_CHUNKS = Metric(
    "stage_late_chunks_total", _C, _E, "Chunks that no request waited for any more.", PLACE
)
EDGE_DEPTH = Metric("edge_depth_chunks", _G, _E, "Chunks that were sent and are not used up.", _OUT)
EDGE_CAPACITY = Metric(
    "edge_capacity_chunks",
    _G,
    _E,
    "How many there may be before producers wait that have some under way themselves.",
    _OUT,
)
EDGE_DEPTH_BYTES = Metric("edge_depth_bytes", _G, _E, "Bytes of those chunks.", _OUT)
EDGE_CAPACITY_BYTES = Metric("edge_capacity_bytes", _G, _E, "How many there may be.", _OUT)
EDGE_BLOCKED = Metric(
    "edge_blocked_requests", _G, _E, "Requests that wait for room on the edge.", _OUT
)
EDGE_BLOCKINGS = Metric(
    "edge_blockings_total", _C, _E, "How often a request had to wait for room.", _OUT
)
EDGE_BLOCKED_S = Metric(
    "edge_blocked_seconds_total", _C, _E, "How long requests have waited for room.", _OUT
)
KV_HANDOFFS = Metric(
    "kv_handoffs_total",
    _C,
    _E,
    "KV caches by what became of them: ready, failed, cancelled.",
    (*PLACE, "outcome"),
)
KV_STORE = Metric(
    "kv_store_seconds_total",
    _C,
    _E,
    "Of the caches that are ready: from the criterion of their hand-off until they were stored.",
    PLACE,
)
KV_BLOCKS = Metric(
    "kv_held_blocks", _G, _E, "Blocks that are kept for caches on their way out.", PLACE
)

TABLE: tuple[Metric, ...] = tuple(v for v in dict(globals()).values() if isinstance(v, Metric))
"""All of them, in the order of this file."""
