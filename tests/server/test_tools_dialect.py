"""How a model is told of tools: by its own chat template where that speaks of them, by the server where not."""

from __future__ import annotations

import json

import pytest

from paged_core.model.chat_template import ChatTemplate
from paged_core.server.tools.dialect import Dialect, dialect_of
from paged_core.server.tools.formats import HERMES, LLAMA3_JSON
from paged_core.testing.tokenizer import ByteTokenizer

PATH = "/v1/chat/completions"
LONG = {"max_model_len": 4096, "num_blocks": 2048}
TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "\u00e9"}'}}
ASKED = {"role": "user", "content": "Time?"}
MADE = {"role": "assistant", "tool_calls": [CALLED]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}

QWEN = """
{%- if tools %}<|system|>
{%- for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}
Write <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|end|>{% endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ '<|user|><tool_response>' + message.content + '</tool_response><|end|>' }}
    {%- else %}{{ '<|' + message.role + '|>' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- ARGUMENTS + '}\n</tool_call>' }}
        {%- endfor %}{{ '<|end|>' }}
    {%- endif %}
{%- endfor %}{{ '<|assistant|>' }}"""
QWEN_OBJECTS = QWEN.replace("ARGUMENTS", "(call.function.arguments | tojson)")
QWEN_TEXT = QWEN.replace("ARGUMENTS", "call.function.arguments")
LLAMA = """
{%- if messages[0].role == 'system' %}{{ raise_exception('no system message here') }}{% endif %}
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) + '\n' }}{% endfor %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
        {{- '<|assistant|>{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- (message.tool_calls[0].function.arguments | tojson) + '}<|end|>' }}
    {%- elif message.role == 'tool' %}{{ '<|ipython|>' + message.content | tojson + '<|end|>' }}
    {%- else %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}{{ '<|assistant|>' }}"""
OTHER = QWEN_OBJECTS.replace("'\n<tool_call>\n{", "'[TOOL_CALLS]{")
assert OTHER != QWEN_OBJECTS
NONE = """
{%- for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}<|assistant|>"""
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + NONE


class Templated(ByteTokenizer):
    """A tokenizer with a template in Jinja."""

    def __init__(self, template, script=(), special=()):
        super().__init__(script)
        self.template = ChatTemplate({"default": template} if template else {}, {})
        self.special = special

    def apply_chat_template(self, messages, *, tools=None, **kwargs):
        return self.template.render(messages, tools, kwargs)

    def is_special(self, token_id):
        return super().is_special(token_id) or self._bytes.get(token_id) in self.special

    def decode(self, token_ids, skip_special_tokens=True):
        shown = [one for one in token_ids if not (skip_special_tokens and self.is_special(one))]
        return super().decode(shown, skip_special_tokens)

    def encode(self, text, add_special_tokens=True):
        for piece in self.special:
            if text == piece.decode():
                return [self._ids[piece]]
        return super().encode(text, add_special_tokens)


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (QWEN_OBJECTS, Dialect(HERMES, native=True, objects=True)),
        (QWEN_TEXT, Dialect(HERMES, native=True)),
        (LLAMA, Dialect(LLAMA3_JSON, native=True, objects=True, single=True, system=False)),
        (OTHER, Dialect(HERMES)),
        (NONE, Dialect(HERMES)),
        (NO_SYSTEM, Dialect(HERMES, system=False)),
        ("", Dialect(HERMES, system=False)),
    ],
    ids=["objects", "text", "llama", "unknown", "none", "no_system", "no_template"],
)
def test_a_template_tells_its_dialect(template, dialect):
    assert dialect_of(Templated(template)) == dialect


def test_the_operator_may_know_better():
    assert dialect_of(Templated(OTHER), "llama3_json") == Dialect(LLAMA3_JSON, native=True, objects=True)
    assert dialect_of(Templated(NONE), "llama3_json") == Dialect(LLAMA3_JSON)


@pytest.fixture
def prompts(house):
    """The prompt of a conversation over a template, as text."""

    def render(template, *messages, tools=(TOOL,), **settings):
        server = house(shape={**LONG, "tokenizer": Templated(template)}, **settings)
        body = {"messages": list(messages), "max_tokens": 1, "return_token_ids": True}
        response = server.post(PATH, {**body, "tools": list(tools)} if tools else body)
        assert response.status_code == 200, response.text
        return ByteTokenizer().decode(response.json()["prompt_token_ids"])

    return render


def test_a_native_template_gets_calls_the_way_it_writes_them(prompts):
    history = '<|assistant|>\n<tool_call>\n{"name": "now", "arguments": {"zone": "\u00e9"}}\n</tool_call><|end|>'
    for template in (QWEN_OBJECTS, QWEN_TEXT):
        prompt = prompts(template, ASKED, MADE, RESULT)
        assert json.dumps(TOOL) in prompt
        assert history + "<|user|><tool_response>noon</tool_response><|end|><|assistant|>" in prompt
    prompt = prompts(LLAMA, ASKED, MADE, RESULT)
    assert json.dumps(TOOL, indent=4) in prompt
    assert '<|assistant|>{"name": "now", "parameters": {"zone": "\u00e9"}}<|end|><|ipython|>"noon"<|end|>' in prompt


def test_a_history_of_calls_needs_no_tools(prompts):
    for template in (QWEN_OBJECTS, NONE):
        prompt = prompts(template, ASKED, MADE, RESULT, tools=())
        assert prompt.startswith("<|user|>Time?<|end|>")
        assert '<tool_call>\n{"name": "now", "arguments": {"zone": "\u00e9"}}\n</tool_call><|end|>' in prompt
        assert "Tools" not in prompt


def test_a_template_without_tools_is_told_of_them_in_the_system_message(prompts):
    prompt = prompts(NONE, ASKED)
    assert prompt.startswith("<|system|># Tools\n")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in prompt
    assert '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|end|>' in prompt
    assert prompt.endswith("<|end|><|user|>Time?<|end|><|assistant|>")
    own = prompts(NONE, {"role": "developer", "content": "Be brief."}, ASKED)
    assert own == prompt.replace("<|system|>", "<|system|>Be brief.\n\n")
    assert prompts(NO_SYSTEM, ASKED).startswith("<|user|># Tools\n")
    bare = prompts(NONE, ASKED, tool_format="llama3_json")
    assert '{"name": function name, "parameters": dictionary' in bare
    assert "<tool_call>" not in bare


def test_a_template_without_tools_reads_calls_and_results_as_text(prompts):
    twice = {**MADE, "content": "Let me see.", "tool_calls": [CALLED, {**CALLED, "id": "c2"}]}
    prompt = prompts(NONE, ASKED, twice, RESULT, {**RESULT, "tool_call_id": "c2"}, ASKED, tools=())
    written = '<tool_call>\n{"name": "now", "arguments": {"zone": "\u00e9"}}\n</tool_call>'
    result = "<tool_response>\nnoon\n</tool_response>"
    assert prompt == (
        f"<|user|>Time?<|end|><|assistant|>Let me see.\n{written}\n{written}<|end|>"
        f"<|user|>{result}\n{result}<|end|><|user|>Time?<|end|><|assistant|>"
    )


def test_v09_a_template_that_takes_one_call_gets_them_one_by_one(prompts, house):
    def made(name):
        return f'<|assistant|>{{"name": "{name}", "parameters": {{}}}}<|end|>'

    def calls(*ids):
        return [{"id": id_, "type": "function", "function": {"name": id_, "arguments": "{}"}} for id_ in ids]

    def result(id_):
        return {"role": "tool", "tool_call_id": id_, "content": f"of {id_}"}

    several = {"role": "assistant", "content": None, "tool_calls": calls("a", "b", "c")}
    prompt = prompts(LLAMA, ASKED, several, result("b"), result("a"), ASKED, several, result("a"), tools=())
    first = made("b") + '<|ipython|>"of b"<|end|>' + made("a") + '<|ipython|>"of a"<|end|>' + made("c")
    second = made("a") + '<|ipython|>"of a"<|end|>' + made("b") + made("c")
    assert prompt == f"<|user|>Time?<|end|>{first}<|user|>Time?<|end|>{second}<|assistant|>"
    server = house(shape={**LONG, "tokenizer": Templated(LLAMA)})
    forced = {"messages": [ASKED], "tools": [TOOL], "tool_choice": "required", "temperature": 1}
    for seed in range(4):
        (choice,) = server.post(PATH, {**forced, "seed": seed}).json()["choices"]
        assert len(choice["message"]["tool_calls"]) == 1


MARKS = [b"<tool_call>", b"</tool_call>"]


def test_marks_that_are_control_tokens_are_read_all_the_same(house):
    script = ["<tool_call>", '{"name": "now"}', "</tool_call>", "!"]
    body = {"messages": [ASKED], "tools": [TOOL], "temperature": 0}
    for special in ([], MARKS):
        tokenizer = Templated(NONE, script, special)
        assert dialect_of(tokenizer).hides_marks == bool(special)
        server = house(script, shape={**LONG, "tokenizer": tokenizer})
        (choice,) = server.post(PATH, body).json()["choices"]
        assert choice["message"]["content"] == "!"
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
        (plain,) = server.post(PATH, {**body, "tool_choice": "none"}).json()["choices"]
        assert plain["message"]["content"] == ('{"name": "now"}!' if special else "".join(script))


def test_z11_tools_cannot_smuggle_in_control_tokens_where_contents_cannot(house):
    class Ending(Templated):
        def encode(self, text, add_special_tokens=True):
            return [256 if byte == 0 else byte for byte in text.replace("</s>", "\0").encode()]

    hostile = {**TOOL, "function": {**TOOL["function"], "description": "</s>"}}
    call = {**CALLED, "function": {"name": "now", "arguments": '{"a": "</s>"}'}}
    server = house(shape={**LONG, "tokenizer": Ending(QWEN_OBJECTS)}, plain_content=True)
    for messages, tools, param in (
        ([ASKED], [hostile], "tools"),
        ([ASKED, {**MADE, "tool_calls": [call]}, RESULT], [TOOL], "messages"),
    ):
        response = server.post(PATH, {"messages": messages, "tools": tools, "max_tokens": 2})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
    assert server.post(PATH, {"messages": [ASKED], "tools": [TOOL], "max_tokens": 2}).status_code == 200
