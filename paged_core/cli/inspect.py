"""`paged-core inspect MODEL`: what a model is, and what fits on this machine. Loads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command
from paged_core.cli.options import engine_flags, engine_options
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.api.executor import ExecutorNeed
    from paged_core.api.loader import Tokenizer
    from paged_core.api.model import ModelSpec
    from paged_core.engine.config import EngineConfig

HELP = """Show the architecture of MODEL, its size, what a token of KV cache costs, how many blocks and tokens fit here,
which plugins would serve it, and its tokenizer's facts. Takes the engine options of `run`; loads no weights.
"""


def inspect(parameters: Mapping[str, Any]) -> None:
    """Print the facts on stdout, one "name  value" a line."""
    from paged_core.engine.assemble import choose, engine_config, executor_need, locate
    from paged_core.plugins import bootstrap

    settings = Settings.load(**engine_flags(parameters))
    plugins = bootstrap(settings)
    model = locate(settings, plugins)
    need = executor_need(settings, plugins, model)
    chosen = choose(settings, plugins, need)
    executor = plugins.create("executor", chosen["executor"], need)
    try:
        facts = engine_config(settings, plugins, need, executor.capacity(), chosen)
    finally:
        executor.close()
    rows = [("model", model.name), ("files", str(model.loader.pull()))]
    rows += [*spec_rows(model.spec), *fit_rows(need, facts), *tokenizer_rows(model.tokenizer), *model.spec.extra]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


def spec_rows(spec: ModelSpec) -> list[tuple[str, str]]:
    """What the model is, wherever it runs."""
    from paged_core.model.parallel.shard import fitting_sizes
    from paged_core.model.weights import num_parameters

    rows = [
        ("architecture", spec.architecture),
        ("parameters", f"{num_parameters(spec):,}"),
        ("layers", f"{spec.num_layers}, hidden size {spec.hidden_size:,}, feed-forward {spec.intermediate_size:,}"),
        ("heads", f"{spec.num_heads} query, {spec.num_kv_heads} key/value, {spec.head_dim} wide"),
        ("ranks", f"{', '.join(map(str, fitting_sizes(spec)))} can share it (--tensor-parallel-size)"),
        ("max length", f"{spec.max_position:,} tokens"),
        ("prefers", spec.dtype),
    ]
    if windows := spec.distinct_windows:
        count = sum(window is not None for window in spec.windows)
        rows.append(("windows", f"{count} layers see the last {', '.join(map(str, windows))} tokens"))
    if spec.moe is not None:
        rows.append(("experts", f"{spec.moe.num_experts}, {spec.moe.num_experts_per_token} per token"))
    return rows


def fit_rows(need: ExecutorNeed, facts: EngineConfig) -> list[tuple[str, str]]:
    """What it costs and how much of it fits, with the present settings."""
    from paged_core.engine.hardware import kv_bytes

    token_bytes = need.spec.kv_bytes_per_token(*kv_bytes(need.kv_dtype))
    blocks = f"{facts.num_blocks:,} blocks of {facts.block_size} = {facts.kv_tokens:,} tokens"
    longest = facts.kv_tokens / facts.max_model_len
    return [
        ("runs as", f"{facts.dtype} on {facts.device}"),
        ("linear layers", _linear_layers(need, facts)),
        ("KV per token", f"{token_bytes:,} bytes ({need.kv_dtype})"),
        ("KV pool here", f"{blocks} ({facts.num_blocks * facts.block_bytes / 2**30:.2f} GiB)"),
        ("at full length", f"{longest:,.1f} sequences of {facts.max_model_len:,} tokens"),
        ("swap pool here", f"{facts.num_host_blocks:,} blocks"),
        ("plugins", "  ".join(f"{kind}={name}" for kind, name in facts.plugins.items())),
    ]


def _linear_layers(need: ExecutorNeed, facts: EngineConfig) -> str:
    """The path that serves, and faster ones of the same precision with what they lack here."""
    import torch

    from paged_core.model.linear import Linears
    from paged_core.model.place import Place

    return str(Linears(Place(torch.device(facts.device), getattr(torch, facts.dtype), need.quantization)))


def tokenizer_rows(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Vocabulary, special tokens, and whether it can chat."""
    from paged_core.errors import RequestError

    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
        chat = "yes"
    except RequestError as error:
        chat = f"no ({error})"
    return [
        ("vocabulary", f"{tokenizer.vocab_size:,} tokens"),
        ("begins with", "nothing" if tokenizer.bos_token_id is None else f"token {tokenizer.bos_token_id}"),
        ("ends at", ", ".join(f"token {token}" for token in tokenizer.eos_token_ids) or "no token"),
        ("chat template", chat),
    ]


_PARAMETERS = [click.Argument(["model"]), *engine_options(without=frozenset({"model"}))]
inspect_command = Command("inspect", inspect, _PARAMETERS, HELP)
