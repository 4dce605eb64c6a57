"""LLM: offline inference. Names and fields are vLLM's."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from paged_core.api.output import CompletionOutput, RequestOutput
from paged_core.api.params import SamplingParams
from paged_core.engine.assemble import assemble, load_settings
from paged_core.engine.progress import progress_bar
from paged_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from paged_core.api.loader import Tokenizer


class LLM:
    """A model ready to answer.

        llm = LLM("smollm2-135m")
        for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0, max_tokens=32)):
            print(output.outputs[0].text)

    `model` is a folder, a .gguf file, a registry name or a Hub id; every other keyword is a field of
    `paged_core.settings.Settings` (attn, sched, dtype, block_size, kv_memory, ...), the same as the command line's.
    Raises ConfigError, ModelError or PluginError with one line that says what to do. Not thread-safe.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        self.settings = load_settings(model=model, **settings)
        self._assembly = assemble(self.settings)
        self.engine, self.timings = self._assembly.engine, self._assembly.timings
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer (vLLM's spelling)."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one prompt or a list of them, in their order.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`. `sampling_params` is one
        for all or one each. A prompt that cannot run comes back as an output with `error` set and finish reason
        "error" and harms no neighbour; when all of them fail, the first error is raised instead.
        """
        batch = _as_list(prompts)
        params = _one_each(sampling_params, len(batch))
        outputs: dict[str, RequestOutput] = {}
        errors: list[RequestError] = []
        ids = [f"llm-{next(self._ids)}" for _ in batch]
        for request_id, prompt, one in zip(ids, batch, params, strict=True):
            try:
                self.engine.add_request(request_id, prompt, one)
            except RequestError as error:
                errors.append(error)
                outputs[request_id] = failed_output(request_id, prompt, str(error))
        if errors and len(errors) == len(batch):
            raise errors[0]
        self._drain(outputs, len(ids), use_tqdm)
        return [outputs[request_id] for request_id in ids]

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of role/content dicts) or a list of conversations.

        `template` goes to the model's chat template. RequestError when the model has none or refuses the messages.
        """
        conversations = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        prompts = [self.chat_prompt(one, tools=tools, **template) for one in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def chat_prompt(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **template: Any
    ) -> dict[str, Any]:
        """The prompt of a conversation. The template writes the special tokens itself, so none are added (case 48)."""
        text = self.tokenizer.apply_chat_template(messages, tools=tools, **template)
        return {"prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)}

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Answer one prompt, yielding an output per step, of the params' output_kind. Closing it aborts."""
        request_id = f"llm-{next(self._ids)}"
        self.engine.add_request(request_id, prompt, sampling_params, stream=True)
        try:
            while True:
                for output in self.engine.step():
                    if output.request_id != request_id:
                        continue
                    yield output
                    if output.finished:
                        return
        finally:
            self.engine.abort([request_id])
            self._rest()

    def close(self) -> None:
        """Release the model and the pools. Idempotent."""
        self._assembly.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _drain(self, outputs: dict[str, RequestOutput], total: int, show: bool) -> None:
        pending = total - len(outputs)
        try:
            with progress_bar(total, len(outputs), enabled=show) as advance:
                while pending:
                    for output in self.engine.step():
                        if output.finished:
                            outputs[output.request_id] = output
                            pending -= 1
                            advance(sum(len(one.token_ids) for one in output.outputs))
            self._rest()
        except BaseException:  # Ctrl-C included: leave no request behind, then let it pass
            if not self.engine.dead:
                self.engine.abort(self.engine.unfinished_ids)
            raise

    def _rest(self) -> None:
        """Nothing stays in flight behind the last request."""
        while not self.engine.dead and self.engine.has_unfinished and not self.engine.unfinished_ids:
            self.engine.step()


def failed_output(request_id: str, prompt: Any, error: str) -> RequestOutput:
    """What a request that was refused looks like among the others."""
    text = prompt if isinstance(prompt, str) else None
    branch = CompletionOutput(0, "", [], finish_reason="error")
    return RequestOutput(request_id, text, [], [branch], finished=True, error=error)


def _as_list(prompts: Any) -> list[Any]:
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise RequestError(f"prompts are text, token ids, a dict or a list of these, not {type(prompts).__name__}")
    if prompts and all(isinstance(item, int) and not isinstance(item, bool) for item in prompts):
        return [list(prompts)]
    return list(prompts)


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(
            f"{len(params)} sampling_params for {count} prompts: give one, or one each", "sampling_params"
        )
    return list(params)
