"""Mutants of attn_cuda's kernels: one barrier, wait or check less, in a copy of csrc."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_attn_cuda.compile import SOURCES

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
    """`before` in csrc/`file` becomes `after`: where it stands alone, or its `nth` place, counted from 1."""

    file: str
    before: str
    after: str
    nth: int = 0

    def __str__(self) -> str:
        return f"{self.file}: {self.before}" + (f" #{self.nth}" if self.nth else "") + f" -> {self.after}"

    def apply(self, folder: Path) -> None:
        """Copy csrc to `folder` with the change. Raises AssertionError where the text is not there, or not once."""
        shutil.copytree(SOURCES, folder, dirs_exist_ok=True)
        parts = (folder / self.file).read_text().split(self.before)
        assert self.nth < len(parts), f"{self.file} has {self.before!r} {len(parts) - 1} times"
        assert self.nth or len(parts) == 2, f"{self.file} has {self.before!r} {len(parts) - 1} times"
        cut = self.nth or 1
        head, tail = self.before.join(parts[:cut]), self.before.join(parts[cut:])
        (folder / self.file).write_text(head + self.after + tail)


def synchronisation(files: tuple[str, ...]) -> list[Mutant]:
    """A mutant for each barrier, wait and commit of `files`."""
    found = []
    for file in files:
        text = (SOURCES / file).read_text()
        for pattern, after in SYNCHRONISATION:
            places: Counter[str] = Counter()
            for match in pattern.finditer(text):
                places[match.group()] += 1
                found.append(Mutant(file, match.group(), match.expand(after), places[match.group()]))
    return found
