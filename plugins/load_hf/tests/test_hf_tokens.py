from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from paged_core.errors import ModelFormatError, ModelUnsupportedError

USER = [{"role": "user", "content": "hi"}]


def test_ids_text_and_ends_come_from_the_folder(folder, open_loader):
    tokenizer = open_loader(folder.path).tokenizer()
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (257, (256,), 320)
    assert tokenizer.decode(tokenizer.encode("the 삼겹살 inn")) == "the 삼겹살 inn"
    assert tokenizer.apply_chat_template(USER) == "user: hi\nassistant:"


def test_special_tokens_may_be_objects(folder, open_loader):
    folder.edit("tokenizer_config.json", bos_token={"content": "<s>", "special": True}, eos_token=None)
    tokenizer = open_loader(folder.path).tokenizer()
    assert tokenizer.bos_token_id == 257
    assert tokenizer.eos_token_ids == (256,)  # config.json


def test_the_tokenizers_own_end_token_counts_beside_the_configs(folder, open_loader):
    folder.edit("config.json", eos_token_id=300)
    assert open_loader(folder.path).tokenizer().eos_token_ids == (300, 256)


def test_a_special_token_that_tokenizer_json_takes_for_plain_is_hidden_all_the_same(folder, open_loader):
    folder.edit("tokenizer_config.json", eos_token="the")
    fast = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    fast.add_tokens(["the"])
    fast.save(str(folder.path / "tokenizer.json"))
    tokenizer = open_loader(folder.path).tokenizer()
    ids = tokenizer.encode("athe")
    assert tokenizer.is_special(ids[-1])
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "athe"


def test_limits_saved_in_tokenizer_json_do_not_cut_prompts(folder, open_loader):
    fast = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    fast.enable_truncation(4)
    fast.enable_padding(length=8)
    fast.save(str(folder.path / "tokenizer.json"))
    tokenizer = open_loader(folder.path).tokenizer()
    assert len(tokenizer.encode("xyzxyzxyz")) == 9
    assert len(tokenizer.encode("x")) == 1


def test_llama_flags_decide_about_bos_and_eos(folder, open_loader):
    folder.edit("tokenizer_config.json", tokenizer_class="LlamaTokenizerFast", add_bos_token=True, add_eos_token=True)
    tokenizer = open_loader(folder.path).tokenizer()
    assert tokenizer.encode("x") == [257, *tokenizer.encode("x", add_special_tokens=False), 256]
    folder.edit("tokenizer_config.json", add_bos_token=False, add_eos_token=False)
    assert len(open_loader(folder.path).tokenizer().encode("x")) == 1


def test_tokens_known_to_the_config_only_are_added_at_their_ids(folder, open_loader):
    folder.edit("tokenizer_config.json", added_tokens_decoder={"320": {"content": "<new>", "special": True}})
    tokenizer = open_loader(folder.path).tokenizer()
    assert tokenizer.encode("<new>") == [320]
    assert tokenizer.is_special(320)
    folder.edit("tokenizer_config.json", added_tokens_decoder={"400": {"content": "<new>", "special": True}})
    with pytest.raises(ModelFormatError, match=r"'<new>' is 320 in tokenizer\.json but 400"):
        open_loader(folder.path).tokenizer()
    folder.edit("tokenizer_config.json", added_tokens_decoder={"x": 3})
    with pytest.raises(ModelFormatError, match="added token 'x' is malformed"):
        open_loader(folder.path).tokenizer()


def test_chat_templates_are_found_in_all_their_places(folder, open_loader):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder.edit("tokenizer_config.json", chat_template=named)
    tokenizer = open_loader(folder.path).tokenizer()
    assert tokenizer.apply_chat_template(USER) == "a"
    assert tokenizer.apply_chat_template(USER, tools=[{"name": "f"}]) == "b"
    (folder.path / "chat_template.jinja").write_text("c")
    (folder.path / "additional_chat_templates").mkdir()
    (folder.path / "additional_chat_templates" / "tool_use.jinja").write_text("d")
    tokenizer = open_loader(folder.path).tokenizer()
    assert tokenizer.apply_chat_template(USER) == "c"
    assert tokenizer.apply_chat_template(USER, tools=[{"name": "f"}]) == "d"


@pytest.mark.parametrize("content", [b"", b"{}", b"{", b'{"model": {"type": "BPE"}}', b"\xff"])
def test_a_damaged_tokenizer_names_its_file(content, folder, open_loader):
    (folder.path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json is damaged"):
        open_loader(folder.path).tokenizer()


def test_a_template_that_does_not_compile_is_a_model_error(folder, open_loader):
    folder.edit("tokenizer_config.json", chat_template="{% for %}")
    with pytest.raises(ModelFormatError, match="does not compile"):
        open_loader(folder.path).tokenizer()


def test_no_tokenizer_at_all_is_told(folder, open_loader):
    (folder.path / "tokenizer.json").unlink()
    with pytest.raises(ModelUnsupportedError, match=r"no tokenizer\.json, tokenizer\.model or vocab\.json"):
        open_loader(folder.path).tokenizer()


@pytest.mark.slow
def test_vocab_and_merges_without_tokenizer_json_go_through_transformers(folder, open_loader):
    (folder.path / "tokenizer.json").unlink()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*alphabet, "</s>", "<s>", "th"])}
    models.BPE(vocab=vocabulary, merges=[("t", "h")]).save(str(folder.path))
    folder.edit("tokenizer_config.json", tokenizer_class="GPT2Tokenizer", unk_token="</s>", add_bos_token=False)
    tokenizer = open_loader(folder.path).tokenizer()
    assert tokenizer.encode("th", add_special_tokens=False) == [258]
    assert tokenizer.decode(tokenizer.encode("the 삼겹살")) == "the 삼겹살"


@pytest.mark.slow
def test_an_unreadable_sentencepiece_model_is_one_line(folder, open_loader):
    (folder.path / "tokenizer.json").unlink()
    (folder.path / "tokenizer.model").write_bytes(b"nonsense")
    folder.edit("tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    with pytest.raises(ModelUnsupportedError, match="transformers cannot build one") as caught:
        open_loader(folder.path).tokenizer()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["the quick", "a<s>b</s> c", "", " x  y\n", "삼겹살 👍🏽 é", "<s>the"])
def test_ids_and_text_equal_those_of_transformers(text, folder, open_loader):
    from transformers import AutoTokenizer

    witness = AutoTokenizer.from_pretrained(folder.path)
    mine = open_loader(folder.path).tokenizer()
    assert mine.encode(text) == witness.encode(text)
    ids = mine.encode(text)
    for skip in (True, False):
        wanted = witness.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert mine.decode(ids, skip) == wanted


def test_the_config_is_plain_json(folder):
    """The fixture the tests above lean on."""
    assert json.loads((folder.path / "config.json").read_text())["vocab_size"] == 320
