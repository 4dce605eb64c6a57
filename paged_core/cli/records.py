"""Records: the output file of a batch, written so that a killed run continues where it stopped.

One JSON object a line, appended and flushed as a whole when its request has finished. A line without its newline is one
that was being written when the process died; it is cut off and its request computed again.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, TYPE_CHECKING, Any

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

Key = tuple[str, "str | int"]
"""("id", what the input line calls itself) or ("line", its number from 1)."""

_STARTS = (b'{"id": ', b'{"line": ')


class Records:
    """The output file: what is done, and how to add to it. Locked, so that two runs cannot interleave.

    Raises ConfigError when the file holds anything that no run of ours wrote; such a file is left untouched.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[Key] = set()
        self.num_errors = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Records:
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise ConfigError(f"--output {self.path}: {error.strerror}") from error
        try:
            _lock(self._file, self.path)
            self._read(self._file)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, key: Key, body: dict[str, Any]) -> None:
        """Append one finished record and hand it to the system: it survives the death of this process."""
        assert self._file is not None
        line = json.dumps({key[0]: key[1], **body}, ensure_ascii=False).encode("utf-8", "backslashreplace")
        self._file.write(line + b"\n")
        self._file.flush()
        self.done.add(key)
        self.num_errors += "error" in body

    def _read(self, file: IO[bytes]) -> None:
        file.seek(0)
        end = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if not _is_torn(line):
                    raise self._foreign(number)
                break
            self._note(line, number)
            end += len(line)
        file.truncate(end)
        file.seek(0, os.SEEK_END)

    def _note(self, line: bytes, number: int) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not line.startswith(_STARTS):
            raise self._foreign(number)
        name = "id" if line.startswith(_STARTS[0]) else "line"
        self.done.add((name, record[name]))
        self.num_errors += "error" in record

    def _foreign(self, number: int) -> ConfigError:
        return ConfigError(
            f"--output {self.path}, line {number}, was not written by a run of this command; name another file"
        )


def _is_torn(line: bytes) -> bool:
    """Whether an unfinished line can be the beginning of a record."""
    return any(line.startswith(start) or start.startswith(line) for start in _STARTS)


def _lock(file: IO[bytes], path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"--output {path} is being written by another run; wait for it or name another file"
        ) from error
