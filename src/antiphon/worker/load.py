"""Resolves the "module:attribute" names that a topology declares."""

from __future__ import annotations

import importlib

from antiphon.errors import AdapterError


def load_object(name: str) -> object:
    """The object named "module:attribute". Raises AdapterError when it cannot be had."""
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise AdapterError(f"'{name}' cannot be loaded: {error}") from error
