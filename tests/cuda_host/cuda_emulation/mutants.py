"""Mutants of attn_cuda's kernels: one barrier, wait or check less, in a copy of csrc."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_emulation.host import kernel_folder

if TYPE_CHECKING:
    from pathlib import Path

SYNCHRONISATION = (
    (re.compile(r"__syncthreads\(\);"), ";"),
    (re.compile(r"__syncwarp\(\);"), ";"),
    (re.compile(r"device::cp_async_wait<.*?>\(\);"), ";"),
    (re.compile(r"cp_async_wait<(.*?)>\(\);"), r"cp_async_wait<(\1) + 1>();"),
    (re.compile(r"device::cp_async_commit\(\);"), ";"),
)
"""Each of these statements is taken out alone, wherever it stands; a wait also lets one group more be under way."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`before`, which stands in csrc/`file` once, becomes `after`; or the text from `start` to `stop` does."""

    file: str
    before: str
    after: str
    start: int = -1

    def __str__(self) -> str:
        return f"{self.file}: {self.before}" if self.start < 0 else f"{self.file}:{self._line()}: {self.before}"

    def apply(self, folder: Path) -> None:
        """Copy csrc to `folder` with the change. Raises AssertionError where the text is not there, or not once."""
        shutil.copytree(kernel_folder(), folder, dirs_exist_ok=True)
        text = (folder / self.file).read_text()
        start = self.start
        if start < 0:
            assert text.count(self.before) == 1, f"{self.file} has {self.before!r} {text.count(self.before)} times"
            start = text.index(self.before)
        assert text.startswith(self.before, start)
        (folder / self.file).write_text(text[:start] + self.after + text[start + len(self.before) :])

    def _line(self) -> int:
        return (kernel_folder() / self.file).read_text().count("\n", 0, self.start) + 1


def synchronisation(files: tuple[str, ...]) -> list[Mutant]:
    """A mutant for each barrier, wait and commit of `files`."""
    found = []
    for file in files:
        text = (kernel_folder() / file).read_text()
        for pattern, after in SYNCHRONISATION:
            for match in pattern.finditer(text):
                changed = match.expand(after)
                found.append(Mutant(file, match.group(), changed, match.start()))
    return found
