"""Loaders: weights complete and true under their canonical names, specs, tokenizers, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from paged_conformance.benches.loader import accepted, open_loader, read_whole
from paged_conformance.marks import layer
from paged_conformance.oracles.llama import stored_weights
from paged_core.api.loader import LoaderNeed
from paged_core.errors import PagedError, RequestError
from paged_core.model.spec import spec_from_hf
from paged_core.testing.tiny import CONFIG, write_tiny_llama

pytestmark = layer("behaviour")

PLAIN = ("the quick brown fox", "a", "1 + 1 = 2, is it not?", "then there; (on) the other hand")
UNICODE = ("Grüße, 삼겹살 und 🥓", "e\u0301 is not é", "\u200b\u202e", "line\nbreak\ttab  two spaces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder that the suite wrote itself."""
    return write_tiny_llama(tmp_path_factory.mktemp("loader") / "tiny")


@pytest.fixture
def models(loader, folder, pytestconfig):
    """Every sound model at hand that the loader accepts."""
    found = accepted(loader, [folder, *map(Path, pytestconfig.getoption("paged_loader_sample"))])
    if not found:
        pytest.skip(f"{loader.name} reads no Hugging Face folders; give it a model with --paged-loader-sample PATH")
    return found


@pytest.fixture
def refuses_folders(loader, folder):
    """Whether the loader takes no Hugging Face folder; it must have said why."""
    fit = loader.fit(LoaderNeed(str(folder)))
    assert fit.ok or fit.reasons, f"{loader.name} refuses {folder} without a reason"
    return not fit.ok


def test_weights_come_once_complete_and_in_shape_under_canonical_names(loader, models):
    for path in models:
        whole = read_whole(loader, path)
        assert whole.spec.vocab_size >= 1


def test_weights_are_the_stored_values_under_their_canonical_names(loader, folder, refuses_folders):
    """q and o, gate and up have equal shapes: only the values tell them apart."""
    if refuses_folders:
        return
    weights = read_whole(loader, folder).weights
    for name, stored in stored_weights(folder).items():
        assert torch.equal(weights[name].float(), stored), f"{name} does not hold the stored values"


def test_weights_may_be_streamed_again_and_by_another_loader(loader, models):
    for path in models:
        opened = open_loader(loader, path)
        first = {name: tensor.clone() for name, tensor in opened.weights()}
        for again in (opened, open_loader(loader, path)):
            second = dict(again.weights())
            assert second.keys() == first.keys(), f"{path}: another pass gave other tensors"
            different = [name for name in first if not torch.equal(first[name], second[name])]
            assert not different, f"{path}: another pass gave other values for {different[:3]}"


def test_the_spec_is_that_of_the_config(loader, folder, refuses_folders):
    if refuses_folders:
        return
    spec, wanted = open_loader(loader, folder).spec(), spec_from_hf(dict(CONFIG))
    for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_position"):
        assert getattr(spec, name) == getattr(wanted, name), f"{name} is {getattr(spec, name)}"
    assert spec.eos_token_ids == (CONFIG["eos_token_id"],)
    assert not spec.tie_embeddings, "config.json says that the head is not tied"


def test_pull_is_idempotent_and_tells_its_news_in_lines(loader, models):
    for path in models:
        news = []
        opened = open_loader(loader, path)
        first = opened.pull(news.append)
        assert first.exists(), f"pull returned {first}, which is not there"
        assert opened.pull() == first
        assert all(isinstance(line, str) and "\n" not in line for line in news), f"news that is no line: {news}"


def test_text_survives_the_tokenizer(loader, models, folder):
    """Spaces at the ends aside, which some tokenizers add to words."""
    for path in models:
        tokenizer = open_loader(loader, path).tokenizer()
        for text in (*PLAIN, *UNICODE) if path == folder else PLAIN:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert all(0 <= token < tokenizer.vocab_size for token in ids), f"{path}: {text!r} has ids {ids}"
            back = tokenizer.decode(ids)
            assert back.strip() == text.strip(), f"{path}: {text!r} became {back!r} by way of {ids}"
        assert tokenizer.encode("", add_special_tokens=False) == []
        assert tokenizer.decode([]) == ""


def test_tokenizer_and_spec_agree_about_the_vocabulary(loader, models):
    for path in models:
        opened = open_loader(loader, path)
        spec, tokenizer = opened.spec(), opened.tokenizer()
        assert set(spec.eos_token_ids) <= set(tokenizer.eos_token_ids), f"{path}: ends differ"
        for token in tokenizer.eos_token_ids:
            assert 0 <= token < spec.vocab_size, f"{path}: end token {token} is outside the model's vocabulary"
            assert isinstance(tokenizer.token_text(token), str)
        if spec.bos_token_id is not None and tokenizer.bos_token_id is not None:
            assert spec.bos_token_id == tokenizer.bos_token_id


def test_special_tokens_are_left_out_unless_asked_for(loader, folder, refuses_folders):
    if refuses_folders:
        return
    tokenizer = open_loader(loader, folder).tokenizer()
    end, ids = CONFIG["eos_token_id"], tokenizer.encode("the end", add_special_tokens=False)
    assert tokenizer.is_special(end)
    assert not any(map(tokenizer.is_special, ids)), f"plain text has special tokens: {ids}"
    assert tokenizer.decode([*ids, end]) == "the end"
    assert tokenizer.decode([*ids, end], skip_special_tokens=False) == "the end</s>"


def test_no_text_gets_a_second_beginning(loader, models):
    for path in models:
        tokenizer = open_loader(loader, path).tokenizer()
        bos = tokenizer.bos_token_id
        if bos is not None:
            ids = tokenizer.encode(tokenizer.decode([bos], skip_special_tokens=False) + "the")
            assert ids.count(bos) <= 1, f"{path}: a text that brings its own beginning became {ids}"


def test_half_a_character_is_shown_as_such(loader, folder, refuses_folders):
    """Incomplete UTF-8 decodes to U+FFFD; two such tokens do not look alike in lists of log-probabilities."""
    if refuses_folders:
        return
    tokenizer = open_loader(loader, folder).tokenizer()
    ids = tokenizer.encode("🥓", add_special_tokens=False)
    assert len(ids) == 4, f"the suite's tokenizer has bytes only: {ids}"
    assert "\ufffd" in tokenizer.decode(ids[:2]), f"half of 🥓 decodes to {tokenizer.decode(ids[:2])!r}"
    texts = [tokenizer.token_text(token) for token in ids]
    assert all(text.startswith("bytes:") for text in texts), f"parts of a character are shown as {texts}"
    assert len(set(texts)) == len(set(ids)), f"different tokens look alike: {texts}"


def test_every_token_has_a_text(loader, models):
    for path in models:
        tokenizer = open_loader(loader, path).tokenizer()
        for token in range(min(tokenizer.vocab_size, 2000)):
            text = tokenizer.token_text(token)
            assert isinstance(text, str), f"{path}: token {token} has the text {text!r}"


def test_many_threads_may_use_one_tokenizer(loader, models):
    """Case D14, "Already borrowed": results must equal those of one thread."""
    for path in models:
        tokenizer = open_loader(loader, path).tokenizer()
        texts = [f"{text} number {i}" for i in range(40 if loader.quick else 200) for text in PLAIN]

        def both_ways(i, tokenizer=tokenizer, texts=texts):
            ids = tokenizer.encode(texts[i], add_special_tokens=i % 2 == 0)
            return ids, tokenizer.decode(ids, skip_special_tokens=i % 3 == 0), tokenizer.token_text(ids[-1])

        wanted = [both_ways(i) for i in range(len(texts))]
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(both_ways, range(len(texts))))
        assert got == wanted, f"{path}: eight threads got other results than one"


def test_a_chat_template_gives_text_or_refuses_the_request(loader, models):
    for path in models:
        tokenizer = open_loader(loader, path).tokenizer()
        try:
            text = tokenizer.apply_chat_template([{"role": "user", "content": "the question"}])
            assert "the question" in text, f"{path}: the template lost the message: {text!r}"
        except RequestError as error:
            text = str(error)
        assert text.strip(), f"{path}: neither a prompt nor a reason"


def test_a_template_that_refuses_its_messages_is_the_requests_fault(loader, folder, refuses_folders, tmp_path):
    if refuses_folders:
        return
    own = write_tiny_llama(tmp_path / "tiny")
    refusing = "{{ raise_exception('roles must alternate') }}"
    (own / "tokenizer_config.json").write_text(f'{{"eos_token": "</s>", "chat_template": "{refusing}"}}')
    tokenizer = open_loader(loader, own).tokenizer()
    with pytest.raises(RequestError):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])


def test_a_model_that_is_not_there_is_refused_or_told(loader, tmp_path):
    for name in ("absent", "absent.gguf", "absent/deeper/still"):
        path = tmp_path / name
        if loader.fit(LoaderNeed(str(path))).ok:
            with pytest.raises(PagedError, match="absent"):
                open_loader(loader, path).pull()
