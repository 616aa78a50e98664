"""Schedulers of a stage: thin subclasses of vLLM's; they decide when, never what the data means."""
