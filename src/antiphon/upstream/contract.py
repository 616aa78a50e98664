"""Every private or unstable name of vLLM, and of transformers' models, that Antiphon relies on.

The one list: `antiphon check`, the contract test and docs/upstream-symbols.md read it, and a test
finds uses and overrides that are not in it. A name stands under the seam that uses it first.
"""

from __future__ import annotations

from antiphon.upstream.contract_cache import CACHE_SEAMS
from antiphon.upstream.contract_engine import ENGINE_SEAMS
from antiphon.upstream.contract_media import MEDIA_SEAMS
from antiphon.upstream.contract_metrics import METRICS_SEAMS
from antiphon.upstream.contract_models import MODEL_SEAMS
from antiphon.upstream.contract_scheduler import SCHEDULER_SEAMS
from antiphon.upstream.contract_worker import WORKER_SEAMS
from antiphon.upstream.symbols import Seam, Symbol

SEAMS: tuple[Seam, ...] = (
    *SCHEDULER_SEAMS,
    *WORKER_SEAMS,
    *MODEL_SEAMS,
    *ENGINE_SEAMS,
    *CACHE_SEAMS,
    *MEDIA_SEAMS,
    *METRICS_SEAMS,
)

SYMBOLS: tuple[Symbol, ...] = tuple(symbol for seam in SEAMS for symbol in seam.symbols())
