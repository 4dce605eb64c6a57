"""Tiny random checkpoints made by transformers, and a decoder over paged keys and values to compare with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from paged_attn_torch import TorchAttentionProvider

from paged_core.api.attention import AttentionNeed
from paged_core.api.batch import Batch
from paged_core.model.decoder import Decoder
from paged_core.model.parallel.shard import Shard, local_spec
from paged_core.model.place import Place
from paged_core.model.spec import spec_from_hf
from paged_core.model.weights import translate_hf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paged_core.api.model import ModelSpec

COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 257,
    "eos_token_id": 256,
    "pad_token_id": None,
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny products gain nothing from threads, and threads that wait for each other crawl on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make_reference(architecture: str, **overrides: Any) -> tuple[Any, dict[str, Any]]:
    """A seeded random transformers model in fp32 and its config as config.json would hold it."""
    import transformers

    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**COMMON, **overrides})
    config.architectures = [architecture]
    config._attn_implementation = "eager"
    with torch.inference_mode(False):
        torch.manual_seed(0)
        model = model_class(config).eval()
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.data = noise * parameter.shape[-1] ** -0.5
            elif name.endswith("bias") or architecture.startswith("Gemma"):
                parameter.data = noise * 0.2  # Gemma's norms are stored as w - 1
            else:
                parameter.data = 1 + noise * 0.2
        model.tie_weights()
    return model, json.loads(config.to_json_string(use_diff=False))


def canonical(spec: ModelSpec, state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in state.items():
        yield from translate_hf(spec, name, tensor)


class PagedModel:
    """A Decoder with a small pool whose blocks are handed out in random order and start as NaN.

    Its attention is attn_torch, or what `provider` makes. With a `collective` it is that rank of a group.
    """

    def __init__(
        self, spec: ModelSpec, weights: Any, block_size: int = 4, dtype: torch.dtype = torch.float32,
        provider: Any = None, quantization: str = "none", **load: Any,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.block_size = block_size
        end = load.get("collective")
        part = spec if end is None else local_spec(spec, Shard(end.rank, end.size))
        need = AttentionNeed(
            "cpu", str(dtype)[6:], str(dtype)[6:], part.num_heads, part.num_kv_heads, spec.head_dim, block_size,
            windows=tuple({w for w in spec.windows if w}), softcap=spec.attention_softcap,
            required=frozenset({"fused_rope"} if provider and load.get("fused_rope") else ()),
        )  # fmt: skip
        provider = provider or TorchAttentionProvider()
        assert provider.probe(need).ok
        self.attention = provider.create(need, provider.Settings(), None)
        place = Place(torch.device("cpu"), dtype, quantization)
        self.decoder = Decoder.load(spec, weights, place, self.attention, **load)
        layout = self.attention.layout(64)
        self.caches = [torch.full(layout.shape, torch.nan, dtype=dtype) for _ in range(spec.num_layers)]
        self.tables = np.full((8, 64), -1, np.int32)
        self.lengths = [0] * 8
        self.free = [int(b) for b in np.random.default_rng(0).permutation(64)]

    def step(self, tokens: dict[int, list[int]]) -> dict[int, torch.Tensor]:
        """Append tokens to rows; logits [tokens, vocab] of each row."""
        rows, positions, slots = list(tokens), [], []
        for row in rows:
            begin, self.lengths[row] = self.lengths[row], self.lengths[row] + len(tokens[row])
            for position in range(begin, self.lengths[row]):
                block, offset = divmod(position, self.block_size)
                if self.tables[row, block] < 0:
                    self.tables[row, block] = self.free.pop()
                positions.append(position)
                slots.append(int(self.tables[row, block]) * self.block_size + offset)
        counts = [len(tokens[row]) for row in rows]
        batch = Batch(
            num_tokens=sum(counts),
            num_seqs=len(rows),
            query_start=np.cumsum([0, *counts], dtype=np.int32),
            seq_lens=np.array([self.lengths[row] for row in rows], np.int32),
            rows=np.array(rows, np.int32),
            tables=self.tables,
            positions=np.array(positions, np.int32),
            slots=np.array(slots, np.int64),
        )
        ids = torch.tensor([token for row in rows for token in tokens[row]])
        where = torch.tensor(positions)
        if self.decoder.fused_rope:
            batch.rope = self.decoder.rope_tables(where)
        hidden = self.decoder.forward(ids, where, self.caches, self.attention.plan(batch))
        return dict(zip(rows, self.decoder.logits(hidden).clone().split(counts), strict=True))

    def greedy(self, prompt: list[int], num_tokens: int, chunk: int, row: int = 0) -> list[int]:
        """Prefill in chunks, then decode."""
        for begin in range(0, len(prompt), chunk):
            logits = self.step({row: prompt[begin : begin + chunk]})[row]
        output = [int(logits[-1].argmax())]
        while len(output) < num_tokens:
            output.append(int(self.step({row: [output[-1]]})[row][-1].argmax()))
        return output


def reference_greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens without any cache: the whole text anew for every token."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture
def reference() -> Callable[..., tuple[Any, dict[str, Any]]]:
    return make_reference


@pytest.fixture
def paged() -> Callable[..., PagedModel]:
    """Build a PagedModel from a transformers model and its config."""

    def build(model: Any, config: dict[str, Any], **options: Any) -> PagedModel:
        spec = spec_from_hf(config)
        return PagedModel(spec, canonical(spec, model.state_dict()), **options)

    return build


@pytest.fixture
def paged_from() -> type[PagedModel]:
    return PagedModel


@pytest.fixture
def translated() -> Callable[..., Iterator[tuple[str, torch.Tensor]]]:
    return canonical


@pytest.fixture
def agree() -> Callable[..., None]:
    """Full logits within 1e-4 in one pass, and equal greedy tokens with chunked prefill and paged decode."""

    def check(model: Any, paged_model: PagedModel, length: int = 21, num_tokens: int = 24) -> None:
        prompt = torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(2)).tolist()
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0]
        torch.testing.assert_close(paged_model.step({1: prompt})[1], expected, atol=1e-4, rtol=0)
        assert expected.std() > 0.1, "the reference is too flat to tell anything"
        tokens = reference_greedy(model, prompt, num_tokens)
        assert paged_model.greedy(prompt, num_tokens, chunk=6) == tokens

    return check
