"""Schedulers of a stage:

thin subclasses of vLLM's, which decide when and never what the data means.
"""
