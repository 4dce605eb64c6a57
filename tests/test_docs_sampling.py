"""docs/sampling.md names every parameter, every refusal with its reason, and an example that runs."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from paged_core import LLM
from paged_core.api.params import NOT_SUPPORTED, SamplingParams
from paged_core.testing.tiny import write_tiny_llama


@pytest.fixture
def page(repository):
    return (repository / "docs/sampling.md").read_text()


def rows(page, first):
    """The rows of the table that begins with the header cell `first` and the one given."""
    table = page[page.index(first) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_parameter_is_in_the_table_once(page):
    named = [name for row in rows(page, "| parameter | meaning |") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(item.name for item in fields(SamplingParams) if item.init)


def test_every_parameter_without_a_meaning_is_listed_with_the_reason(page):
    assert rows(page, "| parameter | why |") == [[f"`{name}`", why] for name, why in NOT_SUPPORTED.items()]


def test_the_logits_processor_of_the_page_does_what_it_says(page, tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    model = str(write_tiny_llama(tmp_path / "tiny"))
    assert '"smollm2-135m"' in code
    monkeypatch.setattr("paged_core.LLM", lambda name: LLM(model, num_blocks=32, attn="attn_torch"))
    for old, new in (("max_tokens=8", "max_tokens=8, ignore_eos=True"), ("params)[0]", "params, use_tqdm=False)[0]")):
        assert old in code
        code = code.replace(old, new)
    exec(code, {})
    tokens = [int(token) for token in capsys.readouterr().out.strip().strip("[]").split(",")]
    assert [token % 2 for token in tokens] == [0, 1] * 4
