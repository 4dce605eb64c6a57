"""The runs of a drift report: prompts from a file, and engines that work through them in one setting each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_conformance.benches.traffic import preempting_by
from paged_conformance.flips import Reference
from paged_core.api.attention import AttentionNeed
from paged_core.api.params import SamplingParams
from paged_core.engine.assemble import assemble, load_settings, locate
from paged_core.errors import ConfigError
from paged_core.plugins import bootstrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from paged_core.api.output import RequestOutput
    from paged_core.engine.metrics import EngineStats
    from paged_core.plugins import Plugins

MIXES = ("alone", "together", "chunked")
"""alone: one prompt after the other; together: all at once; chunked: all at once in steps of few tokens."""
PREEMPTIONS = ("none", "recompute", "swap")
"""none: the pool is ample; the others: a quarter of the blocks that were needed at most, so that requests leave."""
CHUNK_TOKENS, CHUNK_SEQS = 48, 24


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the same prompts."""

    attn: str
    dtype: str
    block_size: int
    mix: str
    preempt: str

    def __str__(self) -> str:
        return f"{self.attn} {self.dtype} block {self.block_size} {self.mix} preempt {self.preempt}"


@dataclass(frozen=True, slots=True)
class Task:
    """What is run: model, prompts as token ids, tokens per answer, the registry."""

    model: str
    prompts: Sequence[Sequence[int]]
    num_tokens: int
    plugins: Plugins


def load_task(model: str, path: Path, count: int, num_tokens: int) -> Task:
    """The first `count` prompts of a file of JSON lines, as the model's chat template wants them where it has one.

    Raises ConfigError for a line that holds no prompt or a file with fewer lines.
    """
    settings = load_settings(model=model)
    plugins = bootstrap(settings)
    tokenizer = locate(settings, plugins).tokenizer
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()][:count]
    if len(lines) < count:
        raise ConfigError(f"{path} holds {len(lines)} prompts, {count} are asked for: lower --count")
    prompts = []
    for number, line in enumerate(lines, start=1):
        messages = _messages(json.loads(line), f"{path}:{number}")
        text = tokenizer.apply_chat_template(messages)
        prompts.append(tokenizer.encode(text, add_special_tokens=False))
    return Task(model, prompts, num_tokens, plugins)


def _messages(record: dict[str, Any], place: str) -> list[dict[str, Any]]:
    if isinstance(record.get("messages"), list):
        messages: list[dict[str, Any]] = record["messages"]
        return messages
    turns = record.get("turns") or [record.get("prompt") or record.get("text")]
    if not isinstance(turns[0], str):
        raise ConfigError(f'{place}: no prompt there; a line has "turns", "prompt", "text" or "messages"')
    return [{"role": "user", "content": turns[0]}]


def fitting_backends(task: Task) -> list[str]:
    """Every attention backend that takes the model in float32 with blocks of 16, best first."""
    settings = load_settings(model=task.model)
    spec = locate(settings, task.plugins).spec
    windows = tuple(sorted({window for window in spec.windows if window is not None}))
    need = AttentionNeed(
        "cpu",
        "float32",
        "float32",
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        16,
        windows=windows,
        softcap=spec.attention_softcap,
    )
    names = [record.name for record in task.plugins.of_kind("attn") if task.plugins.judge(record, need).ok]
    if not names:
        raise ConfigError(f"no attention backend takes {task.model} in float32")
    return names


def run_reference(task: Task, attn: str) -> Reference:
    """Each prompt alone in float32, no prefix cache, with the gaps between the two best logits."""
    outputs, _ = _outputs(task, Setting(attn, "float32", 16, "alone", "none"), None, logprobs=2)
    gaps = []
    for output in outputs:
        rows = output.outputs[0].logprobs or []
        best = [sorted((entry.logprob for entry in row.values()), reverse=True)[:2] for row in rows]
        gaps.append([first - second for first, second in best])
    return Reference([list(output.outputs[0].token_ids) for output in outputs], gaps)


def run(task: Task, setting: Setting, peak_blocks: int | None) -> tuple[list[list[int]], EngineStats]:
    """Tokens of every prompt in one setting. `peak_blocks`: what an ample pool needed, where memory is to be short."""
    outputs, stats = _outputs(task, setting, peak_blocks)
    return [list(output.outputs[0].token_ids) for output in outputs], stats


def _outputs(
    task: Task, setting: Setting, peak_blocks: int | None, logprobs: int | None = None
) -> tuple[list[RequestOutput], EngineStats]:
    params = SamplingParams(
        temperature=0, max_tokens=task.num_tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
    )
    engine = assemble(load_settings(**_flags(task, setting, peak_blocks)), task.plugins).engine
    try:
        found: dict[str, RequestOutput] = {}
        batches: Iterable[list[int]] = [list(range(len(task.prompts)))]
        if setting.mix == "alone":
            batches = [[i] for i in range(len(task.prompts))]
        for batch in batches:
            for i in batch:
                engine.add_request(str(i), list(task.prompts[i]), params)
            while engine.has_unfinished:
                found |= {output.request_id: output for output in engine.step() if output.finished}
        engine.check()
        return [found[str(i)] for i in range(len(task.prompts))], engine.stats()
    finally:
        engine.close()


def _flags(task: Task, setting: Setting, peak_blocks: int | None) -> dict[str, Any]:
    size = setting.block_size
    per_prompt = [-(-(len(prompt) + task.num_tokens) // size) for prompt in task.prompts]
    num_blocks = sum(per_prompt) + 1
    if setting.preempt != "none":
        assert peak_blocks is not None
        num_blocks = max(max(per_prompt) + 1, -(-peak_blocks // 4))
    flags = {
        "model": task.model,
        "attn": setting.attn,
        "dtype": setting.dtype,
        "block_size": size,
        "num_blocks": num_blocks,
        "max_num_seqs": max(len(task.prompts), 1),
        "preempt": "auto" if setting.preempt == "none" else preempting_by(task.plugins, setting.preempt),
        "prefix_cache": setting.mix != "alone",
    }
    if setting.mix == "chunked":
        flags |= {"max_num_batched_tokens": CHUNK_TOKENS, "max_num_seqs": min(CHUNK_SEQS, len(task.prompts))}
    return flags
