"""The documentation names exactly what exists: options, commands, make targets, settings, files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from paged_core.cli import main
from paged_core.settings import OTHER_VARIABLES, Settings, variable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
CLI = ROOT / "docs/cli.md"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/tour.md", "docs/cli.md", "docs/plugins.md")]
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


@pytest.fixture(scope="module")
def commands() -> dict[str, click.Command]:
    context = click.Context(main, info_name="paged-core")
    found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    groups = {name: command for name, command in found.items() if isinstance(command, click.Group)}
    inner = {f"{group} {name}": one for group, command in groups.items() for name, one in command.commands.items()}
    return {name: command for name, command in (found | inner).items() if command is not None and name not in groups}


def options_of(command: click.Command) -> set[str]:
    return {
        name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts) if "-" in name
    }


def section(page: str, name: str) -> str:
    """The text under the heading of one command."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)
    (found,) = [part for part in parts if part.startswith(f"`paged-core {name}`")]
    return found


def shell_lines(page: Path) -> Iterator[list[str]]:
    """Words of every command line in the fenced blocks of a page, comments and continuations resolved."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.removeprefix("$ ").split("  #")[0].split()
            if words:
                yield words


def test_every_command_has_its_section(commands: dict[str, click.Command]) -> None:
    names = re.findall(r"^## `paged-core ([\w -]+)`", CLI.read_text(), re.MULTILINE)
    assert sorted(names) == sorted(commands)


def test_cli_page_lists_exactly_the_options_of_each_command(commands: dict[str, click.Command]) -> None:
    page = CLI.read_text()
    for name, command in commands.items():
        rows = [line.split("|")[1] for line in section(page, name).splitlines() if line.startswith("| `-")]
        documented = [option for row in rows for option in OPTION.findall(row)]
        missing = options_of(command) - set(documented) - {"--debug"}
        if name in ("inspect", "pull", "serve", "calibrate") or name.startswith("bench "):
            missing -= options_of(commands["run"])  # the page says "the engine options of run"
        assert missing == set(), f"docs/cli.md, paged-core {name}: not documented"
        assert set(documented) <= options_of(command), f"docs/cli.md, paged-core {name}: no such option"
        assert len(documented) == len(set(documented)), f"docs/cli.md, paged-core {name}: documented twice"


def test_cli_page_mentions_no_option_that_does_not_exist(commands: dict[str, click.Command]) -> None:
    known = {option for command in commands.values() for option in options_of(command)} | {"--help", "-h", "--version"}
    known |= {"--debug"}
    mentioned = {option for code in re.findall(r"`([^`\n]+)`", CLI.read_text()) for option in OPTION.findall(code)}
    assert mentioned - known == set()


def test_cli_page_names_every_setting_and_variable() -> None:
    page = CLI.read_text()
    names = [variable(name) for name in Settings.model_fields if name != "plugins"] + list(OTHER_VARIABLES)
    flags = {name for name in names if "--" + name.removeprefix("PAGED_").lower().replace("_", "-") in page}
    assert [name for name in names if name not in flags and name not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_in_the_pages_exist(page: Path, commands: dict[str, click.Command]) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in shell_lines(page):
        if words[0] == "make":
            assert words[1] in targets, words
        elif words[0] == "paged-core" and not words[1].startswith("-"):
            name = " ".join(words[1:3]) if words[1] == "bench" else words[1]
            assert name in commands, words
            given = {word.partition("=")[0] for word in words[2:] if OPTION.fullmatch(word.partition("=")[0])}
            assert given <= options_of(commands[name]), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_named_in_the_pages_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    named = re.findall(r"`((?:paged_core|plugins|tests|docs)/[\w/.-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_readme_example_names_what_the_package_exports() -> None:
    import paged_core

    for names in re.findall(r"^from paged_core import (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE):
        for name in names.split(", "):
            assert name in paged_core.__all__


def test_every_plugin_of_the_repository_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [
        folder.parent.name for folder in (ROOT / "plugins").glob("*/pyproject.toml") if folder.parent.name not in text
    ] == []


def test_the_scheduler_of_the_plugin_page_runs_and_keeps_the_laws(tmp_path: Path) -> None:
    from paged_core import LLM, SamplingParams
    from paged_core.testing.tiny import write_tiny_llama

    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/plugins.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    plugin = tmp_path / "sched_shortest.py"
    plugin.write_text(code)
    model = str(write_tiny_llama(tmp_path / "model"))
    prompts = [
        "a long prompt that takes more than one step to read, for once",
        "short",
        "a bit longer",
        "tiny",
        "x" * 40,
    ]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    sizes = {"block_size": 4, "max_model_len": 96, "max_num_seqs": 4, "max_num_batched_tokens": 16, "audit": True}
    with LLM(model, num_blocks=200, **sizes) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    shortest = {"plugin_modules": (str(plugin),), "sched": "shortest", "num_blocks": 28}
    with LLM(model, **sizes, **shortest) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        stats = llm.engine.stats()
        assert llm.engine.facts.plugins["sched"] == "sched_shortest"
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert sum(stats.preemptions.values()) > 0, "the pool was meant to be too small"
    long, short = outputs[0].metrics, outputs[3].metrics
    assert long is not None
    assert short is not None
    assert (short.first_token_time or 0) < (long.first_token_time or 0)
