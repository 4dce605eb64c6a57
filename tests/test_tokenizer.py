"""TextTokenizer and its chat templates."""

from __future__ import annotations

import json
import threading

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from paged_core.errors import ModelFormatError, RequestError
from paged_core.model.tokenizer import TextTokenizer, TokenizerFacts

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS, BOS, TURN = 256, 257, 258
USER = {"role": "user", "content": "hi"}


def fast(bos=False):
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("</s>", "<s>", "<turn>")])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", BOS)])
    return tokenizer


def make(template=None, bos=False, **facts):
    templates = {} if template is None else {"default": template}
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    known = TokenizerFacts(BOS, (EOS,), special_tokens=special, chat_templates=templates, **facts)
    return TextTokenizer(fast(bos), known)


def render(template, messages=(USER,), **options):
    return make(template).apply_chat_template(list(messages), **options)


def test_bos_is_added_once_whether_or_not_the_text_has_it():
    tokenizer = make(bos=True)
    a = ALPHABET.index("a")
    assert tokenizer.encode("a") == tokenizer.encode("<s>a") == [BOS, a]
    assert tokenizer.encode("<s>a", add_special_tokens=False) == [BOS, a]
    assert tokenizer.encode("a", add_special_tokens=False) == [a]
    assert tokenizer.encode("") == [BOS]
    assert make().encode("") == []


def test_a_chat_prompt_has_one_bos_by_every_way_in():
    tokenizer = make("{{ bos_token }}{{ messages[0].content }}", bos=True)
    prompt = tokenizer.apply_chat_template([USER])
    assert tokenizer.encode(prompt) == tokenizer.encode(prompt, add_special_tokens=False)
    assert tokenizer.encode(prompt).count(BOS) == 1


def test_text_survives_naughty_strings(shared):
    tokenizer = make()
    for text in json.loads((shared / "data/text/naughty_strings.json").read_bytes()):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_spaces_are_never_cleaned_up():
    text = "Hello , world ! I 'm do n't  ."
    tokenizer = make()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_half_a_character_becomes_a_replacement_character():
    tokenizer = make()
    ids = tokenizer.encode("삼")
    assert tokenizer.decode(ids[:2]) == "\ufffd"
    assert tokenizer.decode([]) == ""


def test_special_tokens_are_dropped_or_shown_as_asked():
    tokenizer = make()
    ids = tokenizer.encode("a<turn>b</s>")
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<turn>b</s>"
    assert [tokenizer.is_special(i) for i in ids] == [False, True, False, True]


def test_a_token_only_the_model_calls_special_is_dropped_too():
    b = ALPHABET.index("b")
    tokenizer = make(special_token_ids=frozenset({b}))
    assert tokenizer.is_special(b)
    assert tokenizer.decode(tokenizer.encode("abc")) == "ac"
    assert tokenizer.decode(tokenizer.encode("abc"), skip_special_tokens=False) == "abc"


def test_ids_of_a_padded_vocabulary_give_no_text():
    tokenizer = make()
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode([ALPHABET.index("a"), 300, 49151]) == "a"


@pytest.mark.parametrize("ids", [[-1], [2**40]])
def test_an_impossible_id_is_a_request_error(ids):
    with pytest.raises(RequestError, match="token id"):
        make().decode(ids)


@pytest.mark.parametrize(("text", "told"), [("a\ud83d", r"character 1 is the lone surrogate U\+D83D"), (3, "is a int")])
def test_what_is_no_text_is_a_request_error(text, told):
    with pytest.raises(RequestError, match=told):
        make().encode(text)


def test_saved_truncation_and_padding_are_switched_off():
    limited = fast()
    limited.enable_truncation(3)
    limited.enable_padding(length=10)
    tokenizer = TextTokenizer(limited, TokenizerFacts())
    assert len(tokenizer.encode("abcdef")) == 6


def test_32_threads_get_what_one_gets():
    tokenizer = make("{% for m in messages %}<turn>{{ m.content }}{% endfor %}", bos=True)
    texts = [f"{i} 삼겹살 <turn> x" * (i % 5 + 1) for i in range(40)]
    wanted = [work_once(tokenizer, text) for text in texts]
    errors, results = [], {}

    def work(number):
        try:
            for _ in range(10):
                results[number] = [work_once(tokenizer, text) for text in texts]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(result == wanted for result in results.values())
    assert len(results) == 32


def work_once(tokenizer, text):
    ids = tokenizer.encode(text)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    return ids, tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False), prompt


# -- chat templates ---------------------------------------------------------------------------------------------------


def test_templates_see_messages_special_tokens_tools_and_variables():
    template = "{{ bos_token }}{{ messages[0].content }}{{ tools[0].name }}{{ mood }}{{ eos_token }}"
    assert render(template, tools=[{"name": "f"}], mood="!") == "<s>hif!</s>"


def test_the_generation_prompt_is_there_unless_switched_off():
    template = "x{% if add_generation_prompt %}:{% endif %}"
    assert render(template) == "x:"
    assert render(template, add_generation_prompt=False) == "x"


def test_a_templates_own_words_reach_the_user():
    with pytest.raises(RequestError, match="no system role, please") as caught:
        render("{{ raise_exception('no system role, please') }}")
    assert caught.value.field == "messages"


def test_no_template_is_told():
    with pytest.raises(RequestError, match="no chat template"):
        make().apply_chat_template([USER])


def test_null_fields_count_as_absent():
    template = "{% for m in messages %}{% if m.content is defined %}{{ m.content }}{% endif %}{% endfor %}"
    assert render(template, [{"role": "assistant", "content": None}, USER]) == "hi"


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        ("{{ messages[0].content + 'x' }}", [{"role": "user"}]),
        ("{{ messages[0].content.nothing.deeper }}", [USER]),
        ("{{ 'x' + messages[0].content }}", [{"role": "user", "content": ["a"]}]),
        ("{{ range(999999999) | list }}", [USER]),
        ("{{ 1 // 0 }}", [USER]),
        ("{{ messages[0] }}", ["not an object"]),
        ("{{ messages[0].content | tojson }}", [{"role": "user", "content": {1, 2}}]),
        ("{{ strftime_now(3) }}", [USER]),
    ],
)
def test_whatever_goes_wrong_inside_is_a_request_error(template, messages):
    with pytest.raises(RequestError):
        render(template, messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox_or_change_what_it_was_given(template):
    messages = [dict(USER)]
    with pytest.raises(RequestError):
        render(template, messages)
    assert messages == [USER]


def test_reserved_names_cannot_be_variables():
    with pytest.raises(RequestError, match="messages cannot be set"):
        make("x")._chat.render([USER], None, {"messages": []})


def test_helpers_behave_as_templates_expect():
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hi!"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("  {% if true %}\n  x\n  {% endif %}\n") == "  x\n"


def test_a_template_that_does_not_compile_is_a_model_error():
    with pytest.raises(ModelFormatError, match="does not compile"):
        make("{% if %}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}\n  {{ m.role }}: {{ m.content | trim }}\n{% endfor %}\n{{ tools | tojson(indent=4) }}",
        "{%- for m in messages -%}\n{{ loop.index }}{%- if not loop.last %}, {% endif -%}{%- endfor %}",
        "{% generation %}{{ messages[-1]['content'] }}{% endgeneration %}{{ add_generation_prompt }}{{ documents }}",
    ],
)
def test_rendering_equals_that_of_transformers(template):
    from transformers import PreTrainedTokenizerFast

    witness = PreTrainedTokenizerFast(tokenizer_object=fast(), chat_template=template)
    messages = [{"role": "system", "content": " é<&> "}, USER]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    wanted = witness.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert render(template, messages, tools=tools) == wanted


def test_long_texts_have_the_ids_of_short_ones_and_the_same_faults():
    tokenizer = make(bos=True)
    text = "<s>a\u00e9\U0001f600</s> " * 300
    assert tokenizer.encode(text) == tokenizer._tokenizer.encode(text).ids[1:]
    assert tokenizer.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode(text + "\ud83d")


def test_other_threads_go_on_while_a_long_text_is_encoded():
    tokenizer = make()
    started, done = threading.Event(), threading.Event()

    def work():
        started.set()
        tokenizer.encode("some words " * 100_000)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    num_turns = 0
    while not done.wait(0.001):
        num_turns += 1
    thread.join()
    assert num_turns > 10, "with the lock held, not one turn is taken before the end"
