"""A tiny writer whose caches have the shape of the thinker's, and the network that draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from antiphon.models.imagine.network import DrawNetwork
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.models.imagine.weights import draw_tensors
from antiphon.payload.kv import KeysValues
from drawn import cache_of

TEXT = [5, 17, 90, 3, 44, 61, 61, 8, 100, 23, 77, 12]
OTHER = [5, 17, 90, 3, 44, 61, 62, 8, 100, 23, 77, 12]  # differs in one token


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a stage runs; small matrices are not worth more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    """30 layers with 3 heads of keys of size 64, as the thinker has."""
    from tiny import reference, tiny_model

    shape = {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64}
    rope = {"rope_type": "default", "rope_theta": DrawSizes().rope_theta}
    folder = tmp_path_factory.mktemp("writer")
    return reference(tiny_model(folder, num_hidden_layers=30, rope_parameters=rope, **shape))


@pytest.fixture(scope="session")
def network() -> DrawNetwork:
    sizes = DrawSizes()
    made = DrawNetwork(sizes).eval()
    tensors = draw_tensors(sizes)
    made.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return made


@pytest.fixture(scope="session")
def text(writer: LlamaForCausalLM) -> dict[str, KeysValues]:
    return cache_of(writer, TEXT)


@pytest.fixture(scope="session")
def other(writer: LlamaForCausalLM) -> dict[str, KeysValues]:
    return cache_of(writer, OTHER)


@pytest.fixture
def empty_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models are kept in a folder of the test's own, and there is no network."""
    monkeypatch.setenv("ANTIPHON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ANTIPHON_OFFLINE", "1")
    return tmp_path / "cache"
