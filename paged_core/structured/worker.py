"""The compiling process: `python -m paged_core.structured.worker`, which reads jobs from its input until it ends.

A grammar comes from a stranger and its compiler is native code: it may run for hours, take all memory or crash. Here
it does so alone. The process limits its own memory and ends itself when a job outlives its time, should nobody else.

Messages to it are JSON with the length in front: first the vocabulary, then jobs. Answers are a status byte and bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
from typing import IO, TYPE_CHECKING, Any

from paged_core.structured.backends import open_backend
from paged_core.structured.spec import GrammarError, GrammarSpec
from paged_core.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from paged_core.structured.grammar import Backend

HEADER = struct.Struct("<BQ")
DONE, REFUSED, NO_MEMORY = 0, 1, 2
_GRACE_S = 5.0


def main() -> None:
    """Serve until the input ends. What libraries print goes nowhere: the output is for answers alone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with contextlib.suppress(AttributeError, OSError):
        os.nice(5)  # the engine's steps come first
    vocabulary = Vocabulary.from_json(_receive(sys.stdin.buffer))
    backends: dict[str, Backend] = {}
    while (job := _receive(sys.stdin.buffer)) is not None:
        if "load" in job:
            backends[job["load"]] = open_backend(job["load"], vocabulary)
            status, payload = DONE, b""
        else:
            spec = GrammarSpec(**job["compile"])
            with _limits(job["seconds"], job["memory_bytes"]):
                status, payload = _compile(backends[spec.backend], spec)
        answers.write(HEADER.pack(status, len(payload)) + payload)
        answers.flush()


def _compile(backend: Backend, spec: GrammarSpec) -> tuple[int, bytes]:
    try:
        return DONE, backend.compile(spec)
    except GrammarError as error:
        return REFUSED, str(error).encode()
    except MemoryError:
        return NO_MEMORY, b""


def _receive(source: IO[bytes]) -> Any:
    """The next message, or None at the end of the input."""
    header = source.read(8)
    return json.loads(source.read(int.from_bytes(header, "little"))) if len(header) == 8 else None


@contextlib.contextmanager
def _limits(seconds: float, memory_bytes: int) -> Any:
    """Inside: SIGALRM ends the process some time after `seconds`, and it may grow by `memory_bytes`. Where the system
    knows no such limits, the engine's own clock is the only one."""
    used = _address_space()
    if used:
        import resource

        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, before[1]))
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_S)
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        if used:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int:
    """Bytes of address space this process uses, 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    main()
