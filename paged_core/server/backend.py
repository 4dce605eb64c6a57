"""Backend: what the app needs of whatever answers: an `AsyncLLM`, or something that stands for several of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer
    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine
    from paged_core.errors import EngineDeadError

_T = TypeVar("_T")


class EngineView(Protocol):
    """What may be known of the engine without asking it."""

    @property
    def facts(self) -> EngineConfig:
        """What it runs with."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        ...


class Backend(Protocol):
    """As `AsyncLLM` describes them."""

    @property
    def engine(self) -> EngineView:
        """The engine, or one of several that are alike."""
        ...

    @property
    def max_num_seqs(self) -> int:
        """Sequences that can run at a time, in all engines together."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether requests are answered."""
        ...

    @property
    def failure(self) -> EngineDeadError | None:
        """Why not."""
        ...

    @property
    def silent_s(self) -> float:
        """Seconds without a sign of life while there is something to do."""
        ...

    def generate_all(
        self,
        prompts: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **routing: Any,
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Yield (index of the prompt, output) until all are finished."""
        ...

    async def ask_all(self, question: Callable[[Engine], _T]) -> Mapping[str, _T]:
        """The answers of all engines by their names; one alone has the name ""."""
        ...

    def abort_all(self) -> None:
        """End every request, from any thread."""
        ...

    def give_up(self, reason: str) -> None:
        """Let everybody who waits have EngineDeadError, from any thread."""
        ...
