"""`paged-core bench quality`: what narrower weights, keys and values cost on real text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.cli.bench_options import benchmark, data_folder, data_option, model_settings, publish
from paged_core.cli.options import engine_options
from paged_core.cli.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.cli.command import Command

_HELP = """What bfloat16 and int8 weights and a KV cache of uint8 cost against float32: perplexity of real text, and
greedy answers that change.
"""


def _quality(parameters: Mapping[str, Any]) -> None:
    from paged_core.bench import Report, conditions, quality
    from paged_core.bench.data import TEXT_FILES, read_texts, sample_texts

    folder = data_folder(parameters, TEXT_FILES)
    texts = sample_texts() if folder is None else read_texts(folder)
    size = quality.QUICK if parameters["quick"] else quality.Size()
    tables, facts = quality.quality_tables(model_settings(parameters), texts, size, note)
    publish(Report("bench quality", conditions(data=texts.source, **facts), tables), parameters)


def quality_command() -> Command:
    """`bench quality`."""
    data = data_option("Texts and questions; docs/cli.md lists the files.")
    return benchmark(
        "quality", _quality, [data, *engine_options(frozenset({"dtype", "kv_dtype", "quantization"}))], _HELP
    )
