"""torchvision's operators beside a torch that its compiled part does not load with.

Seam: torch's `torch.backends` entry point, which torch calls at the end of every `import torch`.
The wheel on PyPI is compiled for CUDA. Beside torch's CPU build it cannot load its `_C.so`, which
torchvision itself tolerates, but then it registers shape functions for two operators that only
`_C.so` declares, and `import torchvision` ends with "operator torchvision::nms does not exist". So
does `import vllm`, since transformers imports torchvision where there is one: vLLM's own plugins
come too late. With the two declared torchvision's Python part works, which is what transformers'
image processors need; calling one of the two raises NotImplementedError.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder

import torch

# As torchvision 0.28 declares them: csrc/ops/nms.cpp and csrc/ops/quantized/cpu/qnms_kernel.cpp.
SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def ensure_torchvision_ops() -> None:
    """Make `import torchvision` work beside torch's CPU build; changes nothing where it does.

    Imports nothing of torchvision. May be called more than once.
    """
    for_gpu = torch.version.cuda is not None or torch.version.hip is not None
    if for_gpu or hasattr(torch.ops.torchvision, "nms"):
        return
    compiled = _compiled_part()
    if compiled is None:
        return
    try:
        # Compiled for the CPU it loads, as torchvision is about to do; after ours it would not.
        torch.ops.load_library(compiled)  # type: ignore[no-untyped-call]
    except OSError:
        for name, schema in SCHEMAS.items():
            torch.library.define(f"torchvision::{name}", schema)


def _compiled_part() -> str | None:
    """The file that torchvision will look for its operators in; None without torchvision."""
    package = importlib.util.find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        return None
    finder = FileFinder(
        package.submodule_search_locations[0], (ExtensionFileLoader, EXTENSION_SUFFIXES)
    )
    found = finder.find_spec("_C")
    return None if found is None else found.origin
