"""Model loaders: from a model's name to its spec, tokenizer and weights. No pickle, no code from the model's files.

Damaged, truncated, missing-shard and unknown-architecture files raise ModelFormatError or ModelUnsupportedError with
one line that names the file or tensor.

Capabilities: pull (can obtain what is not here), registry (knows models by short names).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from paged_core.api.model import ModelSpec


@dataclass(frozen=True, slots=True)
class LoaderNeed:
    """The model as the user named it: a folder, a .gguf file, a registry name or a Hub id.

    `cache_dir` is this user's private folder for downloads; None = the loader's own choice. `device` is where the
    weights go: what is made, not read, may as well be made there.
    """

    model: str
    cache_dir: str | None = None
    device: str = "cpu"
    required: frozenset[str] = frozenset()


class Tokenizer(Protocol):
    """Text to ids and back. Safe to call from several threads."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; with special tokens when the model's own configuration adds them (never a second BOS)."""
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; incomplete UTF-8 becomes U+FFFD."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as people read it beside its log-probability: leading space kept, control tokens spelled out.

        A token that is only part of a character reads `bytes:\\xf0\\x9f`, so that no two such tokens look alike.
        """
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token that `skip_special_tokens` drops."""
        ...

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """The prompt text for `messages` with the generation prompt appended.

        Raises RequestError when the model has no template or its template refuses the messages.
        """
        ...


class Loader(ABC):
    """One model. `pull` comes first; the rest reads local files only."""

    @abstractmethod
    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        """Make the files local if they are not; returns their path. Idempotent. `progress` receives one-line news."""

    @abstractmethod
    def spec(self) -> ModelSpec:
        """The architecture, from the files' metadata alone."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with the model."""

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Stream (canonical name, tensor) pairs as stored, each once (`paged_core.model.weights` lists the names).

        Tensors lie in host memory or on the need's device. May be called again, and then streams the same.
        """
