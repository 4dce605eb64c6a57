"""Perplexity, best tokens and answers, by hand and on a tiny model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paged_core.bench.data import Texts
from paged_core.bench.quality import Scores, Size, precisions, quality_tables, score, windows
from paged_core.engine.llm import LLM
from paged_core.testing.tiny import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

    from paged_core.bench.report import Table

SIZE = Size(window=40, text_tokens=100, prompts=2, answer=4)
TEXTS = Texts("x", {"a": ("The cat sat on the mat and looked at the rain. " * 3,)}, ("Why?", "How?", "Never asked"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("quality") / "model")


def test_windows_do_not_cross_pages_and_stop_at_the_limit() -> None:
    pages = ["a" * 90, "b" * 20, "c" * 200]
    found = windows(pages, lambda page: list(page.encode()), Size(window=40, text_tokens=150))
    assert [(chr(one[0]), len(one)) for one in found] == [("a", 40), ("a", 40), ("c", 40)]


def test_perplexity_is_of_the_mean_logarithm() -> None:
    scores = Scores({"a": np.log(np.array([0.5, 0.125]))}, {}, [])
    assert scores.perplexity("a") == pytest.approx(4.0)


def test_scores_are_those_of_the_reference(model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with LLM(str(model), attn="torch", kv_memory="4MiB", prefix_cache=False) as llm:
        scores = score(llm, TEXTS, SIZE)
        ids = windows(TEXTS.pages["a"], llm.tokenizer.encode, SIZE)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.inference_mode():
        logprobs = [reference(torch.tensor([one])).logits[0, :-1].log_softmax(-1) for one in ids]
    wanted = torch.cat(
        [rows.gather(1, torch.tensor(one[1:])[:, None])[:, 0] for rows, one in zip(logprobs, ids, strict=True)]
    )
    np.testing.assert_allclose(scores.logprobs["a"], wanted.numpy(), atol=1e-4)
    assert scores.best["a"].tolist() == torch.cat([rows.argmax(-1) for rows in logprobs]).tolist()
    assert [len(answer) for answer in scores.answers] == [4, 4]


def rows(table: Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.as_json()["rows"]
    return found


def test_float32_agrees_with_itself_and_the_others_are_held_against_it(model: Path) -> None:
    settings = {"model": str(model), "attn": "torch", "kv_memory": "4MiB"}
    (perplexity, answers), facts = quality_tables(settings, TEXTS, SIZE, lambda line: None)
    names = [precision.name for precision in precisions()]
    assert [row["weights"] for row in rows(perplexity)] == names
    first, codes, _, int8, _ = rows(perplexity)
    assert (first["over_float32"], first["same_best"], first["drift"]) == (0.0, 1.0, 0.0)
    assert isinstance(int8["drift"], float)
    assert isinstance(codes["drift"], float)
    assert 0 < codes["drift"] < int8["drift"] < 1
    assert [(row["weights"], row["prompts"]) for row in rows(answers)] == [(name, 2) for name in names[1:]]
    assert facts["model"] == str(model)


def test_agreement_counts_tokens_before_a_difference(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    answers = iter([[[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 6, 0, 8]], [[0, 2, 3, 4], [5, 0, 7, 8]]])
    logprobs = {"a": np.array([math.log(0.5)])}
    monkeypatch.setattr(
        "paged_core.bench.quality.score", lambda *_: Scores(logprobs, {"a": np.array([1])}, next(answers))
    )
    three = precisions()[:3]
    monkeypatch.setattr("paged_core.bench.quality.precisions", lambda: three)
    settings = {"model": str(model), "kv_memory": "4MiB", "attn": "torch"}
    (_, table), _ = quality_tables(settings, TEXTS, SIZE, lambda line: None)
    second, third = rows(table)
    assert (second["same"], second["same_share"], second["agreed"]) == (1, 0.5, 3.0)
    assert (third["same"], third["same_share"], third["agreed"]) == (0, 0.0, 0.5)
