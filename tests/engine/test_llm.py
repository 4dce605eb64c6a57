from __future__ import annotations

import threading

import pytest
from paged_exec_local import LocalExecutorProvider

from paged_core import LLM, SamplingParams
from paged_core.errors import ConfigError, EngineDeadError, ModelError, RequestError, UnknownPluginError
from paged_core.testing.overlapped import Overlapped
from paged_core.testing.tiny import write_tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, num_blocks=64, attn="attn_torch") as made:
        yield made


@pytest.fixture
def overlapping(model, monkeypatch):
    """An LLM whose executor takes two steps at a time."""
    create = LocalExecutorProvider.create

    def overlapped(self, need, settings, plugins):
        return Overlapped(create(self, need, settings, plugins), need.block_size)

    monkeypatch.setattr(LocalExecutorProvider, "create", overlapped)
    with LLM(model, num_blocks=64, attn="attn_torch") as made:
        made.engine._executor.watch(made.engine)
        yield made


def test_nothing_stays_in_flight_behind_the_last_answer(llm, overlapping):
    """What ends early is in one more step, whose blocks are back when the answer is there."""
    params = [SamplingParams(temperature=0, max_tokens=20, stop_token_ids=list(range(i, 320, 3))) for i in range(3)]
    wanted = llm.generate(["the one", "another", "the one"], params, use_tqdm=False)
    got = overlapping.generate(["the one", "another", "the one"], params, use_tqdm=False)
    assert [one.outputs[0].token_ids for one in got] == [one.outputs[0].token_ids for one in wanted]
    assert {one.outputs[0].finish_reason for one in got} >= {"stop"}
    assert overlapping.engine._executor.num_ahead > 0
    assert not overlapping.engine.has_unfinished
    overlapping.engine.check()
    for ends in (True, False):
        stream = overlapping.stream("the one", params[0] if ends else SamplingParams(max_tokens=50, ignore_eos=True))
        first = next(stream)
        if ends:
            assert [first, *stream][-1].finished
        stream.close()
        assert not overlapping.engine.has_unfinished
        overlapping.engine.check()


def test_every_kind_of_prompt_is_answered_in_order(llm):
    ids = llm.tokenizer.encode("the one")
    outputs = llm.generate(["the one", {"prompt": "the one"}, {"prompt_token_ids": ids}, ids], GREEDY, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert outputs[0].prompt == "the one"
    assert outputs[2].prompt is None
    assert outputs[0].prompt_token_ids == outputs[3].prompt_token_ids == ids
    assert llm.generate([1, 2, 3], GREEDY, use_tqdm=False)[0].prompt_token_ids == [1, 2, 3]
    assert llm.generate([], GREEDY) == []


def test_museum_46_one_bad_prompt_comes_back_with_its_error_and_harms_nobody(llm):
    good, bad, also = llm.generate(["the one", [5, 10**6], "another"], GREEDY, use_tqdm=False)
    assert bad.error == "token id 1000000 of the prompt is outside the vocabulary of 320"
    assert bad.outputs[0].finish_reason == "error"
    assert good.outputs[0].token_ids == llm.generate("the one", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    assert also.outputs[0].finish_reason == "length"
    with pytest.raises(RequestError, match="outside the vocabulary"):
        llm.generate([[5, 10**6]], GREEDY)


def test_sampling_params_are_one_for_all_or_one_each(llm):
    three = [SamplingParams(temperature=0, max_tokens=i + 1, ignore_eos=True) for i in range(3)]
    outputs = llm.generate(["a", "b", "c"], three, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    with pytest.raises(RequestError, match="3 sampling_params for 2 prompts"):
        llm.generate(["a", "b"], three)


def test_chat_applies_the_model_s_template_without_a_second_bos(llm):
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert llm.tokenizer.decode(output.prompt_token_ids) == "user: hello\nassistant:"
    both = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert both[0].outputs[0].token_ids == both[1].outputs[0].token_ids == output.outputs[0].token_ids


def test_stream_yields_growing_answers_and_leaving_it_aborts(llm):
    expected = llm.generate("the one", GREEDY, use_tqdm=False)[0].outputs[0]
    seen = list(llm.stream("the one", GREEDY))
    assert [len(output.outputs[0].token_ids) for output in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].outputs[0].text == expected.text
    for output in llm.stream("the one", SamplingParams(max_tokens=60)):
        assert not output.finished
        break
    assert not llm.engine.has_unfinished
    llm.engine.check()


def test_logprobs_hold_the_drawn_token_first_and_k_more(llm):
    for k in (0, 3):
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=k)
        output = llm.generate("the one", params, use_tqdm=False)[0].outputs[0]
        assert len(output.logprobs) == 4
        for entry, token in zip(output.logprobs, output.token_ids, strict=True):
            assert next(iter(entry)) == token
            assert entry[token].rank == 1
            assert len(entry) == max(k, 1)
        total = sum(entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True))
        assert output.cumulative_logprob == pytest.approx(total)


def test_progress_bar_goes_to_stderr(llm, capsys):
    llm.generate(["a", "b"], GREEDY)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err


def test_settings_are_checked_with_one_line_each(model, tmp_path):
    with pytest.raises(ConfigError, match="max_model_len 4096 exceeds"):
        LLM(model, max_model_len=4096)
    with pytest.raises(ConfigError, match="blok_size"):
        LLM(model, blok_size=4)
    with pytest.raises(UnknownPluginError, match="attn_torch"):
        LLM(model, attn="torhc")
    with pytest.raises(ModelError):
        LLM(str(tmp_path))
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        LLM(model, max_num_batched_tokens=8, max_num_seqs=16)


def test_c07_built_and_used_in_a_worker_thread(model):
    results = []

    def work():
        with LLM(model, num_blocks=32, attn="attn_cpu") as made:
            results.append(made.generate("the one", GREEDY, use_tqdm=False)[0].outputs[0].token_ids)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(results[0]) == 5


def test_a_closed_llm_refuses_work(model):
    made = LLM(model, num_blocks=32, attn="attn_torch")
    made.close()
    with pytest.raises(EngineDeadError, match="closed"):
        made.generate("a", GREEDY)


def test_museum_30_two_unseeded_engines_differ_and_global_generators_are_untouched(model):
    import random

    import numpy as np
    import torch

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    drawn = []
    for _ in range(2):
        with LLM(model, num_blocks=32, attn="attn_torch") as made:
            params = SamplingParams(temperature=1.5, max_tokens=20, ignore_eos=True)
            drawn.append(made.generate("a", params, use_tqdm=False)[0].outputs[0].token_ids)
    assert drawn[0] != drawn[1]
    assert state == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
