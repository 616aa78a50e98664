"""The only package that names private vLLM symbols: one file per seam, each with its reason.

`contract` lists every name; `check` verifies the list against the vLLM that is installed.
"""
