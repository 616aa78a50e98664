"""Typed payloads: what crosses an edge, its reference on the control path, and its wire form.

`ref` imports no torch, so that the orchestrator's process stays light; `types`, `wire` and
`adapters` do.
"""
