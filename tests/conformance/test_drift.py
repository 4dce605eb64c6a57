"""The drift report: its arithmetic on made-up runs, and one real run of the tiny model."""

from __future__ import annotations

import json

import pytest
from paged_conformance.drift import Report, main, settings_of
from paged_conformance.drift_runs import Setting, load_task
from paged_conformance.flips import Comparison, Parting, Reference, compare, wilson

from paged_core.errors import ConfigError
from paged_core.testing.tiny import write_tiny_llama

TEXTS = ["the other one", "in the beginning", "a", "thinner than the other", "on and on and on", "eat the rest"]
FP32 = Setting("attn_torch", "float32", 16, "together", "none")
BF16 = Setting("attn_torch", "bfloat16", 16, "together", "none")


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        (0, 50, 0.0, 0.0713),
        (5, 50, 0.0435, 0.2136),
        (25, 50, 0.3664, 0.6336),
        (50, 50, 0.9287, 1.0),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilsons_interval(hits, trials, low, high):
    assert wilson(hits, trials) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("hits", "trials"), [(0, 0), (2, 1), (-1, 3)])
def test_no_proportion_has_no_interval(hits, trials):
    with pytest.raises(ValueError, match="no proportion"):
        wilson(hits, trials)


def test_only_the_first_difference_of_a_sequence_counts():
    reference = Reference([[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]], [[1, 0.5, 1, 1], [1, 1, 1, 2e-4], [1, 1, 1, 1]])
    got = [[1, 7, 8, 9], [5, 6, 7, 0], [9, 9, 9, 9]]
    told_apart = compare(reference, got, judge_ties=True)
    assert told_apart.flips == [Parting(0, 1, 0.5)]
    assert told_apart.ties == [Parting(1, 3, 2e-4)]
    assert told_apart.rate == pytest.approx(1 / 3)
    counted = compare(reference, got, judge_ties=False)
    assert (len(counted.flips), counted.ties, counted.first, counted.median) == (2, [], 1, 2)


def test_runs_of_different_tasks_cannot_be_compared():
    with pytest.raises(ValueError, match="prompt 0: 1 tokens, the reference has 2"):
        compare(Reference([[1, 2]], [[1, 1]]), [[1]], judge_ties=True)
    with pytest.raises(ValueError, match="argument"):
        compare(Reference([[1, 2]], [[1, 1]]), [], judge_ties=True)


def test_a_float32_flip_fails_and_a_bfloat16_flip_is_counted():
    flip = Comparison(50, flips=[Parting(3, 7, 0.2)])
    assert Report(50, 64, [(BF16, flip, 0)]).failures == []
    (failure,) = Report(50, 64, [(BF16, flip, 0), (FP32, flip, 0)]).failures
    assert "prompt 3 flips at token 7" in failure
    assert "0.2000" in failure


def test_two_percent_of_ties_pass_and_more_fail():
    ties = [Parting(i, 0, 1e-4) for i in range(2)]
    assert Comparison(50, ties=ties[:1]).failure() is None
    assert "2 of 50" in str(Comparison(50, ties=ties).failure())


def test_the_table_has_a_line_a_setting():
    report = Report(50, 64, [(FP32, Comparison(50), 0), (BF16, Comparison(50, flips=[Parting(3, 7, 0.2)]), 0)])
    lines = report.table().split("\n")
    assert len(lines) == 4
    assert lines[2].endswith("| 0 | 0 | 0.0% (0.0% .. 7.1%) | - | - |")
    assert lines[3].endswith("| 1 | 0 | 2.0% (0.4% .. 10.5%) | 7 | 7 |")


def test_one_prompt_alone_is_never_preempted():
    settings = settings_of(["a"], ["float32"], [16], ["alone", "together"], ["none", "swap"])
    assert [(setting.mix, setting.preempt) for setting in settings] == [
        ("alone", "none"),
        ("together", "none"),
        ("together", "swap"),
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("drift") / "tiny")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"turns": [text]}) for text in TEXTS))
    return path


def test_the_tiny_model_does_not_flip_in_float32(tiny, prompts, tmp_path, capsys):
    arguments = ["--model", str(tiny), "--prompts", str(prompts), "--count", "6", "--tokens", "12"]
    arguments += ["--attn", "attn_torch", "--attn", "attn_cpu", "--dtype", "float32", "--block-size", "4", "16"]
    assert main([*arguments, "--json", str(tmp_path / "drift.json")]) == 0
    report = json.loads((tmp_path / "drift.json").read_text())
    assert len(report["rows"]) == 2 * 2 * 7
    assert all(row["flips"] == [] for row in report["rows"])
    preempted = {row["preempt"] for row in report["rows"] if row["preemptions"]}
    assert preempted == {"recompute", "swap"}
    assert capsys.readouterr().out.count("\n| attn_") == 28


def test_a_wrong_token_is_found_and_ends_in_code_1(tiny, prompts, monkeypatch, capsys):
    from paged_conformance import drift

    def wrong(task, setting, peak_blocks):
        tokens, stats = healthy(task, setting, peak_blocks)
        tokens[2][5] += 1
        return tokens, stats

    healthy = drift.run
    monkeypatch.setattr(drift, "run", wrong)
    arguments = [
        "--model",
        str(tiny),
        "--prompts",
        str(prompts),
        "--count",
        "6",
        "--tokens",
        "8",
        "--attn",
        "attn_torch",
    ]
    assert main([*arguments, "--dtype", "float32", "--mix", "together", "--preempt", "none"]) == 1
    assert "law 15 is broken: attn_torch float32 block 16 together preempt none: prompt 2 flips at token 5" in (
        capsys.readouterr().out
    )


def test_prompt_files(tiny, tmp_path):
    path = tmp_path / "prompts.jsonl"
    records = [{"prompt": "one"}, {"text": "two"}, {"messages": [{"role": "user", "content": "three"}]}]
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    assert len(load_task(str(tiny), path, 3, 4).prompts) == 3
    with pytest.raises(ConfigError, match="holds 3 prompts, 4 are asked for"):
        load_task(str(tiny), path, 4, 4)
    path.write_text('{"answer": 42}\n')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:1: no prompt there"):
        load_task(str(tiny), path, 1, 4)
