"""`paged-core bench peers`: this engine beside others that are installed on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.bench.peers import OURS, REQUESTS
from paged_core.cli.bench_options import BENCH, benchmark, num_rounds, publish, rounds_option, seed_option
from paged_core.cli.command import Option
from paged_core.cli.options import engine_flags, engine_options
from paged_core.cli.report import note
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.bench.peers import Contestant
    from paged_core.cli.command import Command

_HELP = """This engine beside others that are installed here, in turns, each run a fresh process of its own Python.

A peer's weights count as int8 where the name of its model contains int8 or q8, as bf16 otherwise, and it is compared
with ours of the same precision. docs/peers.md says how to obtain each peer.
"""
_PEERS = {
    "--openvino": ("PYTHON:FOLDER", "OpenVINO GenAI: the Python that has it, and an exported model. Repeatable."),
    "--llamacpp": ("SERVER:FILE", "llama.cpp: the server's binary, and a .gguf file. Repeatable."),
    "--vllm": ("PYTHON:FOLDER", "vLLM's CPU build, its threads bound to the first cores. Repeatable."),
    "--vllm-default": ("PYTHON:FOLDER", "vLLM's CPU build, its threads bound as it does by itself. Repeatable."),
}


_ROUNDS = 2
_QUICK_REQUESTS = 4


def _peers(parameters: Mapping[str, Any]) -> int:
    """Tables; 1 when somebody could not be measured."""
    from paged_core.bench.conditions import cores
    from paged_core.bench.peers import REQUESTS, check_workload, write_workload

    threads = parameters["threads"] or cores()
    contestants = _contestants(parameters, threads)
    if parameters["workload"] is not None:
        return _contest(parameters, contestants, check_workload(Path(parameters["workload"])), threads)
    with tempfile.TemporaryDirectory(prefix="paged-peers-") as folder:
        count, seed = _QUICK_REQUESTS if parameters["quick"] else REQUESTS, parameters["seed"]
        path = write_workload(Path(folder) / f"mixed{count}-seed{seed}.json", count, seed)
        return _contest(parameters, contestants, path, threads)


def _contest(parameters: Mapping[str, Any], contestants: list[Contestant], workload: Path, threads: int) -> int:
    from paged_core.bench import Report, conditions
    from paged_core.bench.peer_table import tables
    from paged_core.bench.peers import Contest

    rounds = num_rounds(parameters)
    report = Report("bench peers", conditions(threads=threads, rounds=rounds, workload=workload.name))
    runs = Contest(workload, threads, note).play(contestants, rounds)
    report.tables += tables(runs)
    if parameters["markdown"] is not None:
        report.write_markdown(Path(parameters["markdown"]))
    publish(report, parameters)
    return int(any(one.failure is not None for one in runs))


def _contestants(parameters: Mapping[str, Any], threads: int) -> list[Contestant]:
    """Each of ours followed by the peers of its precision, so that those who are compared run one after the other."""
    from paged_core.bench.peers import WEIGHTS, llamacpp, openvino, ours, vllm

    others = [openvino(value) for value in parameters["openvino"]]
    others += [llamacpp(value) for value in parameters["llamacpp"]]
    others += [vllm(value, threads, bound=True) for value in parameters["vllm"]]
    others += [vllm(value, threads, bound=False) for value in parameters["vllm_default"]]
    if not others:
        raise ConfigError(f"no peer was named: {', '.join(_PEERS)}")
    settings = engine_flags(parameters)
    mine = [ours(way, settings) for way in parameters["ours"] or OURS]
    return [one for kind in WEIGHTS for one in (*mine, *others) if one.precision == kind]


def peers_command() -> Command:
    """`bench peers`."""
    named: list[click.Option] = [
        Option([name], section=BENCH, multiple=True, metavar=form, help=text) for name, (form, text) in _PEERS.items()
    ]
    text = "Only ours with such weights, int8-u8 with keys and values in 8 bits too. Repeatable. Default: all."
    named.append(Option(["--ours"], section=BENCH, multiple=True, type=click.Choice(list(OURS)), help=text))
    text = f"Requests as JSON. Default: {REQUESTS} with the lengths of a chat service."
    named.append(Option(["--workload"], section=BENCH, metavar="FILE", help=text))
    named.append(Option(["--markdown"], section=BENCH, metavar="FILE", help="Write the tables as Markdown."))
    varied = frozenset({"dtype", "quantization"})
    own = [*named, rounds_option(_ROUNDS), seed_option()]
    return benchmark("peers", _peers, [*own, *engine_options(without=varied)], _HELP)
