"""`paged-core plugins`: what is installed, what is wrong with it, and what fits this machine and model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

import paged_core
from paged_core.api.allocator import AllocatorNeed
from paged_core.api.attention import AttentionNeed
from paged_core.api.executor import ExecutorNeed
from paged_core.api.loader import LoaderNeed
from paged_core.api.model import ModelSpec
from paged_core.api.preemption import PreemptionNeed
from paged_core.api.provider import KINDS
from paged_core.api.sampler import SamplerNeed
from paged_core.api.scheduler import SchedulerNeed
from paged_core.plugins import bootstrap
from paged_core.plugins.hints import nvidia_visible
from paged_core.settings import Settings, variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from paged_core.plugins import Fault, Plugins, Record, Source

_COLOURS = {"ok": "green", "blocked": "yellow", "broken": "red", "conflict": "red", "unfit": "yellow"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the listing; its fields are the keys of `--json`. `plugin` is the plugin id, `kind` "" if unknown.

    `status` is ok, unfit (does not fit here), blocked, broken or conflict, with `reasons` and `hints`. `settings`
    describes each setting by name (with `-v`).
    """

    kind: str
    name: str
    plugin: str
    dist: str
    version: str
    status: str
    api: int | None = None
    priority: int | None = None
    summary: str = ""
    capabilities: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The status as a person reads it."""
        if self.status == "ok":
            return f"ok ({'; '.join(self.hints)})" if self.hints else "ok"
        status = "does not fit here" if self.status == "unfit" else self.status
        return f"{status}: {'; '.join(self.reasons)}"


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Add every setting with its environment variable.")
@click.option("--strict", is_flag=True, help="Fail when a plugin is broken or in conflict.")
@click.option("--plugin", "modules", multiple=True, metavar="MODULE", help="Load one more: a module, file or folder.")
def plugins_command(as_json: bool, verbose: bool, strict: bool, modules: tuple[str, ...]) -> None:
    """List the installed plugins and say which fit this machine and model."""
    settings = Settings.load(plugin_modules=modules)
    plugins = bootstrap(settings)
    if strict:
        plugins.check()
    rows = listing(plugins, settings, verbose)
    judged_for = f"model {settings.model} on {_device(settings)}"
    if as_json:
        report = {"core": paged_core.__version__, "judged_for": judged_for, "plugins": [asdict(row) for row in rows]}
        click.echo(json.dumps(report, indent=2, default=str))
    else:
        _print_table(rows, judged_for, verbose)


def listing(plugins: Plugins, settings: Settings, verbose: bool = False) -> list[Row]:
    """One row for each provider and each fault: by kind, best priority first, faults of a kind last."""
    needs = typical_needs(settings)
    rows = []
    for kind in KINDS:
        rows += [_sound(plugins, record, needs[kind], verbose) for record in plugins.of_kind(kind)]
        rows += [_faulty(fault) for fault in plugins.faults if fault.kind == kind]
    rows += [_faulty(fault) for fault in plugins.faults if fault.kind is None]
    rows += [
        Row("host", source.id, source.id, source.dist, source.version, "ok", summary="adds commands or policy only")
        for source in plugins.hosts
    ]
    return rows


def typical_needs(settings: Settings) -> Mapping[str, Any]:
    """A need of each kind as these settings and a small Llama would state it, to judge fitness in a listing."""
    device = _device(settings)
    dtype = "float32" if settings.dtype == "auto" else settings.dtype
    kv_dtype = dtype if settings.kv_dtype == "auto" else settings.kv_dtype
    length = settings.max_model_len or 2048
    rows, block = 2 * settings.max_num_seqs, settings.block_size
    budget = settings.max_num_batched_tokens or max(512, settings.max_num_seqs)
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_position=length,
    )
    return {
        "loader": LoaderNeed(settings.model),
        "attn": AttentionNeed(device, dtype, kv_dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim, block),
        "alloc": AllocatorNeed(0, 0, block, rows, length, settings.prefix_cache),
        "sched": SchedulerNeed(budget, settings.max_num_seqs, length, block, 0, settings.chunked_prefill),
        "preempt": PreemptionNeed(block, block * spec.kv_bytes_per_token(4), 0),
        "sampler": SamplerNeed(device, spec.vocab_size, rows),
        "executor": ExecutorNeed(
            model=settings.model,
            spec=spec,
            loader=settings.loader,
            attn=settings.attn,
            sampler=settings.sampler,
            device=device,
            dtype=dtype,
            kv_dtype=kv_dtype,
            block_size=block,
            max_rows=rows,
            max_len=length,
            token_budget=budget,
            kv_memory_bytes=settings.kv_memory or 0,
            host_memory_bytes=settings.host_memory,
        ),
    }


def _device(settings: Settings) -> str:
    if settings.device != "auto":
        return settings.device
    return "cuda" if nvidia_visible() else "cpu"


def _sound(plugins: Plugins, record: Record, need: Any, verbose: bool) -> Row:
    fit = plugins.judge(record, need)
    provider = record.provider
    path = (record.plugin,) if record.alone else (record.plugin, record.name)
    return Row(
        record.kind,
        record.name,
        record.plugin,
        record.dist,
        record.version,
        "ok" if fit.ok else "unfit",
        provider.api,
        provider.priority,
        provider.summary,
        tuple(sorted(provider.capabilities)),
        fit.reasons,
        fit.hints + _two_owners(record.source),
        describe(provider.Settings, path) if verbose else {},
    )


def _two_owners(source: Source) -> tuple[str, ...]:
    """The cure for one set of files that two distributions own: removing one takes the files from the other."""
    if len(source.owners) < 2:
        return ()
    cure = f"pip install --force-reinstall {source.owners[0].dist}"
    return (f"several distributions own its files; after removing one of them: {cure}",)


def _faulty(fault: Fault) -> Row:
    source = fault.source
    return Row(
        fault.kind or "", fault.name, source.id, source.dist, source.version, fault.status, reasons=(fault.reason,)
    )


def describe(model: type[BaseModel], path: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Each setting of a plugin: its JSON schema, and the environment variable that sets it."""
    properties = model.model_json_schema().get("properties", {})
    return {
        name: {"variable": "__".join([variable("plugins"), *path, name]).upper(), **schema}
        for name, schema in properties.items()
    }


def _print_table(rows: list[Row], judged_for: str, verbose: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    table = Table(caption=f"fitness judged for {judged_for}", box=None, pad_edge=False)
    for column in ("kind", "name", "id", "dist", "version", "api", "capabilities", "status"):
        table.add_column(column, overflow="fold")
    for row in rows:
        api = "" if row.api is None else str(row.api)
        cells = (row.kind, row.name, row.plugin, row.dist, row.version, api, ", ".join(row.capabilities))
        table.add_row(*map(Text, cells), Text(row.verdict, style=_COLOURS[row.status]))
    console.print(table)
    for row in rows if verbose else []:
        for name, schema in row.settings.items():
            text = f"[plugins.{row.plugin}] {name} = {schema.get('default')!r}  {schema['variable']}"
            console.print(Text(f"{text}  {schema.get('description', '')}".rstrip()), soft_wrap=True)
