"""Writes the page of deployment keys: `python -m antiphon.pipeline.docs FILE`."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import get_args

from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.supervision import Supervision

_HEAD = """\
# Deployment

Generated from the structs of `src/antiphon/pipeline` by `make docs`; do not edit.

A deployment file says how a pipeline runs on a machine. All of it is optional: what is not given is
the topology's word, or a default that suits the device. `antiphon chat --print-config` prints the
deployment with every default filled in, in this form: what it prints is a deployment file.

```yaml
pipeline: voice
stages:
  thinker:
    max_num_seqs: 4
    kv_cache_bytes: 128MiB
  talker:
    input_wait_timeout_s: 30
edges:
  codes:
    mode: full
```

```sh
antiphon chat "Good morning." --deployment mine.yaml
```

Without `pipeline` the file fits any pipeline that has the stages and edges it names.

An unknown key is an error that names the nearest right one.

## Memory

Every stage has a budget of its own: its weights, its `kv_cache_bytes`, and `connector_bytes` of
host memory for payloads, once for each replica. `--verbose` prints it for each stage. On the CPU
nothing starts if weights and KV caches together are more than the machine, or its container, has
left; if only the payloads would go beyond that, a warning says so.
"""


def render() -> str:
    """The page as Markdown."""
    return "\n".join(
        [
            _HEAD,
            _table("Keys", Deployment),
            _table("Keys of a stage, under `stages.NAME`", StageDeployment),
            _table("Keys of an edge, under `edges.NAME`", EdgeDeployment),
            _table("Keys under `supervision`", Supervision),
        ]
    )


def _table(title: str, struct: type) -> str:
    lines = [f"## {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    (body,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101  the source of a class
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            meaning = " ".join(str(ast.literal_eval(text.value)).split())
            kind = _kind(struct, ast.unparse(field.annotation))
            default = "" if field.value is None else ast.unparse(field.value)
            given = "" if default == "None" else f"`{default}`"
            lines.append(f"| `{ast.unparse(field.target)}` | {kind} | {given} | {meaning} |")
    return "\n".join([*lines, ""])


def _kind(struct: type, annotation: str) -> str:
    """A field's type in words: the choices of a named Literal, alternatives with "or"."""
    name = annotation.replace(" | None", "")
    choices = get_args(vars(sys.modules[struct.__module__]).get(name))
    return ", ".join(map(str, choices)) if choices else name.replace("|", "or")


def main(arguments: list[str]) -> int:
    """Write the page to the file named by the one argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m antiphon.pipeline.docs FILE\n")
        return 2
    Path(arguments[0]).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
