"""Writes the page of metrics: `python -m antiphon.observe.docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.observe.table import MODEL, PREFIX, TABLE, Metric, Source

_HEAD = f"""\
# Metrics

Generated from `src/antiphon/observe/table.py` by `make docs`; do not edit.

`GET /metrics` of `antiphon serve` gives them in Prometheus' text format, or as OpenMetrics to who
accepts that. `deploy/` has a configuration for Prometheus, alerts, and a dashboard for Grafana:

```sh
docker compose -f deploy/docker-compose.yml up    # Grafana on http://127.0.0.1:3000
```

All names begin with `{PREFIX}`, and all have the label `{MODEL}`, which is what callers name the
model. Times are in seconds of the server's monotonic clock, where everything that stages report
arrives. A request counts when it ends, a segment of a session like a request; only
`requests_running` and `requests_waiting` change before that.

"""

_TAIL = """\
## vLLM's own metrics

Each stage keeps vLLM's own metrics of its engine. They stand beside these under their own names,
`vllm:...`, with `model_name` as above and the labels `stage` and `replica` added; a label of vLLM's
by one of these names becomes `exported_stage` or `exported_replica`. They are what vLLM's own
server would show of that engine, with these differences:

- `vllm:mm_cache_*` and `vllm:admission_rejections` are left out: they are figures of a front end
  that stages do not have. So are those of speculative decoding and MFU.
- The time of a request in a stage begins when the stage hears of it, which is before its input is
  there: `vllm:request_queue_time_seconds` and `vllm:time_to_first_token_seconds` contain the wait
  for it. `antiphon:stage_queue_seconds` does not.
- A segment of a session has a first token of its own; the session itself is no finished request.
- A request that fails before it has run is not among the finished ones.

Outside `antiphon serve` they are off, and cost nothing; `metrics: true` in a deployment turns them
on, and `AsyncOmni.measure()` gives them.

## A scrape

A scrape asks every running stage, which answers between two steps. A stage that does not answer
within a second is missing in that scrape, and counted in `antiphon:scrapes_unanswered_total`; the
scrape itself neither waits longer nor fails. What is counted of requests is there in any case.
"""


def render() -> str:
    """The page as Markdown."""
    return _HEAD + "\n".join(_section(source) for source in Source) + "\n" + _TAIL


def _section(source: Source) -> str:
    rows = (_row(metric) for metric in TABLE if metric.source is source)
    head = ["| name | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {source}", "", *head, *rows, ""])


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |"


def main(arguments: list[str]) -> int:
    """Write the page to the file named by the one argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m antiphon.observe.docs FILE\n")
        return 2
    Path(arguments[0]).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
