"""Settings that every test shares."""

from __future__ import annotations

import os

# The caller's own settings must not reach a test. Where models are kept stays as it is.
for name in ("ANTIPHON_API_KEY", "ANTIPHON_INPUT_WAIT_TIMEOUT_S", "ANTIPHON_LOG_LEVEL"):
    os.environ.pop(name, None)
