"""A stand-in for the model, so that these tests are about the command line only; test_real_run.py uses the real one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from paged_core.api.allocator import BlockStats
from paged_core.api.output import CompletionOutput, RequestMetrics, RequestOutput
from paged_core.cli import main
from paged_core.engine.config import EngineConfig
from paged_core.engine.metrics import EngineStats, PoolHistory, Quantiles
from paged_core.errors import RequestError
from paged_core.testing.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from click.testing import Result

    from paged_core.api.params import SamplingParams

FACTS = EngineConfig(
    model="fake",
    architecture="FakeForCausalLM",
    vocab_size=320,
    device="cpu",
    dtype="float32",
    kv_dtype="float32",
    block_size=4,
    num_blocks=64,
    num_host_blocks=0,
    block_bytes=64,
    max_model_len=64,
    max_num_seqs=2,
    token_budget=64,
    chunked_prefill=True,
    prefix_cache=True,
    plugins={"attn": "attn_fake"},
)


class FakeEngine:
    """Answers a request by shouting its prompt; finishes the newest request first, one a step."""

    facts = FACTS

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.open: deque[tuple[str, str, SamplingParams]] = deque()
        self.num_answered = 0
        self.most_open = 0
        self.aborted: list[str] = []
        self.before_step: Callable[[], None] = lambda: None

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams) -> None:
        text = self.tokenizer.decode(prompt["prompt_token_ids"]) if isinstance(prompt, dict) else prompt
        if not text:
            raise RequestError("the prompt is empty", "prompt")
        self.open.append((request_id, text, params))
        self.most_open = max(self.most_open, len(self.open))

    def step(self) -> list[RequestOutput]:
        self.before_step()
        if not self.open:
            return []
        self.num_answered += 1
        request_id, text, params = self.open.pop()
        if text == "impossible":
            branch = CompletionOutput(0, "", [], finish_reason="error")
            return [RequestOutput(request_id, text, [], [branch], finished=True, error="it cannot be")]
        return [answer(request_id, text, text.upper()[: params.max_tokens], params.n)]

    def abort(self, ids: Iterable[str]) -> list[RequestOutput]:
        self.aborted += list(ids)
        self.open.clear()
        return []

    def stats(self) -> EngineStats:
        blocks = BlockStats(64, 60, 4, 0, 0, 0, 0, 100, 25, 1, 2)
        pool = PoolHistory(5, 2.5, 0.375, 3, 0.5, 0.0625)
        latencies = {"ttft": Quantiles(0.25, 0.5), "tpot": None}
        totals = {"num_prompt": 40, "busy_s": 2.0, "pool": pool, **latencies}
        return EngineStats(0, 0, 0, 7, 50, 60, blocks, 5, {"recompute": 1}, {"stop": 3}, **totals)


def answer(request_id: str, prompt: str, text: str, n: int = 1, finished: bool = True) -> RequestOutput:
    reason = "stop" if finished else None
    branches = [CompletionOutput(i, text, list(text.encode()), finish_reason=reason) for i in range(n)]
    metrics = RequestMetrics(10.0, 10.1, 10.5, 11.5)
    return RequestOutput(request_id, prompt, list(prompt.encode()), branches, finished, metrics=metrics)


class FakeLLM:
    """What `open_llm` returns in these tests. `settings` are the flags that reached it."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.tokenizer: Any = self.engine.tokenizer
        self.timings = {"plugins": 0.25, "weights": 0.5}
        self.settings: dict[str, Any] = {}
        self.prompts: list[str] = []
        self.closed = False
        self.while_streaming: Callable[[int], None] = lambda index: None

    def chat_prompt(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        text = self.tokenizer.apply_chat_template(messages)
        return {"prompt_token_ids": self.tokenizer.encode(text)}

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[RequestOutput]:
        text = self.tokenizer.decode(prompt["prompt_token_ids"]) if isinstance(prompt, dict) else prompt
        if not text:
            raise RequestError("the prompt is empty", "prompt")
        self.prompts.append(text)
        words = ["one ", "two ", "three"]
        for i in range(3):
            self.while_streaming(i)
            yield answer("r", text, "".join(words[: i + 1]), params.n, finished=i == 2)

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """The model that `paged-core run` will open."""
    fake = FakeLLM()

    def open_llm(settings: dict[str, Any]) -> FakeLLM:
        fake.settings = dict(settings)
        return fake

    monkeypatch.setattr("paged_core.cli.run.open_llm", open_llm)
    return fake


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run `paged-core` with arguments in this process; nothing but SystemExit may come out of it."""

    def run(*arguments: object, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(main, [str(one) for one in arguments], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run
