"""Child: a compiling process as the engine's side sees it, with its limits and its death."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.errors import PagedError
from paged_core.structured.spec import GrammarError, GrammarSpec
from paged_core.structured.worker import DONE, HEADER, NO_MEMORY

if TYPE_CHECKING:
    from paged_core.structured.vocabulary import Vocabulary

START_LIMIT_S = 120.0
"""For importing a grammar library on a loaded machine: two seconds on an idle one."""


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What one grammar may cost. `cache_bytes` bounds all that are kept, and each of them to a quarter."""

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    cache_bytes: int = 1 << 28


class Child:
    """One process, one job at a time, used by one thread at a time. Dead after any failure but a plain refusal."""

    def __init__(self, vocabulary: Vocabulary, limits: CompileLimits) -> None:
        self._limits = limits
        self._loaded: set[str] = set()
        self._overdue = self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paged_core.structured.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at the terminal is for the engine
        )
        self._vocabulary: Vocabulary | None = vocabulary

    @property
    def alive(self) -> bool:
        """Whether it can take another job. A process that was just killed may take its time to die."""
        return not self._killed and self._process.poll() is None

    def compile(self, spec: GrammarSpec) -> bytes:
        """The payload of `Backend.compile`. Raises GrammarError with a text for whoever sent the grammar; PagedError
        when the process cannot even start."""
        if spec.backend not in self._loaded:
            if self._ask({"load": spec.backend}, START_LIMIT_S) is None:
                raise PagedError(f"the process that compiles grammars could not load {spec.backend} ({self._end()})")
            self._loaded.add(spec.backend)
        limits = self._limits
        job = {"compile": dataclasses.asdict(spec), "seconds": limits.seconds, "memory_bytes": limits.memory_bytes}
        answer = self._ask(job, limits.seconds)
        if answer is None:
            raise GrammarError(self._obituary())
        status, payload = answer
        if status == NO_MEMORY:
            self.kill()  # what is left of its memory is anybody's guess
            raise GrammarError(self._too_much_memory())
        if status != DONE:
            raise GrammarError(payload.decode(errors="replace"))
        if len(payload) > limits.cache_bytes // 4:
            raise GrammarError(f"compiled, it takes {len(payload) >> 20} MiB; {limits.cache_bytes >> 22} are allowed")
        return payload

    def kill(self) -> None:
        """End the process now. Idempotent; may be called from any thread."""
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """End it and release its pipes. Only once no thread uses it."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it died with a message half written
                pipe.close()

    def _ask(self, message: Any, limit_s: float) -> tuple[int, bytes] | None:
        """Send and wait; None when the process died or was killed at the limit."""
        timer = threading.Timer(limit_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            if self._vocabulary is not None:
                self._send(self._vocabulary.to_json())
                self._vocabulary = None
            self._send(message)
            return self._answer()
        except BrokenPipeError:
            return None
        finally:
            timer.cancel()

    def _send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(len(data).to_bytes(8, "little") + data)
        self._process.stdin.flush()

    def _answer(self) -> tuple[int, bytes] | None:
        assert self._process.stdout is not None
        header = self._process.stdout.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        status, length = HEADER.unpack(header)
        payload = self._process.stdout.read(length)
        return (status, payload) if len(payload) == length else None

    def _expire(self) -> None:
        self._overdue = True
        self.kill()

    def _end(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _obituary(self) -> str:
        end = self._end()
        if self._overdue:
            return f"compiling it takes more than {self._limits.seconds:g} s: simplify it (structured_timeout)"
        if end == "signal 6":  # an allocation failed where nobody catches it
            return self._too_much_memory()
        return f"its compiler crashed ({end}): simplify it"

    def _too_much_memory(self) -> str:
        return f"compiling it takes more than {self._limits.memory_bytes >> 20} MiB: simplify it (structured_memory)"
