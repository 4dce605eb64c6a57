"""Compiling kernels: NVRTC through cuda.core, once for each instantiation and architecture, kept on disk.

A file of the cache is one line of JSON (what was compiled, the kernel's symbol, what ptxas said, the machine code's
hash) and the machine code. Its name is a hash of everything that the machine code depends on, so that nothing in the
folder can be stale; a file that is damaged is compiled again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_attn_cuda.toolchain import EXTRA, find_toolchain
from paged_core.errors import PluginLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)
news = logging.getLogger("paged_core.news")

FOLDER = "kernels-cuda"
SOURCES = Path(__file__).parent / "csrc"
OPTIONS: Mapping[str, Any] = {"std": "c++17", "ptxas_options": ["-v"]}
"""NVRTC's options besides architecture and include path. No fast math: fp32 is IEEE. -v reports registers, spills."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled kernel: machine code, the symbol to ask it for, and ptxas' lines on registers and memory."""

    code: bytes
    symbol: str
    log: str


class Compiler:
    """Compiles instantiations of the templates in `sources` for one architecture, such as sm_90. Needs no GPU.

    `folder` keeps what was compiled; None or a folder that cannot be written (one warning) = nothing is kept. Raises
    PluginLoadError where cuda.core or NVRTC is missing.
    """

    def __init__(self, arch: str, folder: Path | None, sources: Path = SOURCES) -> None:
        self.arch = arch
        self._folder = folder
        self._sources = sources
        toolchain = find_toolchain()
        if toolchain.reasons:
            raise PluginLoadError(f"{'; '.join(toolchain.reasons)}. Try: {EXTRA}")
        self._nvrtc = ".".join(map(str, toolchain.nvrtc))
        self._digest = _digest_of(sources)
        self._told = False

    def compile(self, source: str, name: str) -> Binary:
        """The kernel `name`, a name expression such as "paged::copy_blocks<16>", of the file `source`.

        Raises PluginLoadError with NVRTC's own words when it does not compile.
        """
        path = None if self._folder is None else self._folder / self._file_name(source, name)
        kept = None if path is None else _read(path)
        if kept is not None:
            return kept
        if not self._told:
            news.info("compiling CUDA kernels for %s (first run only)", self.arch)
            self._told = True
        binary = self._compile(source, name)
        if path is not None:
            self._keep(path, binary, name)
        return binary

    def _file_name(self, source: str, name: str) -> str:
        parts = json.dumps([source, name, self.arch, self._nvrtc, self._digest, OPTIONS])
        return f"{Path(source).stem}-{self.arch}-{hashlib.sha256(parts.encode()).hexdigest()[:32]}.cubin"

    def _compile(self, source: str, name: str) -> Binary:
        from cuda.core import Program, ProgramOptions

        text = (self._sources / source).read_text(encoding="utf-8")
        said = io.StringIO()
        try:
            options = ProgramOptions(name=source, arch=self.arch, include_path=str(self._sources), **OPTIONS)
            module = Program(text, "c++", options).compile("cubin", name_expressions=(name,), logs=said)
        except Exception as error:  # cuda.core publishes no class for it
            complaint = str(error).replace("\0", "").strip()
            raise PluginLoadError(
                f"attn_cuda: NVRTC {self._nvrtc} cannot compile the kernel {name} ({source}) for {self.arch}:\n"
                f"{complaint}"
            ) from error
        symbol = module.symbol_mapping[name]
        return Binary(bytes(module.code), symbol if isinstance(symbol, str) else symbol.decode(), _lines(said))

    def _keep(self, path: Path, binary: Binary, name: str) -> None:
        """Write under another name first: whoever reads at the same time sees all of it or nothing."""
        head = {"kernel": name, "arch": self.arch, "nvrtc": self._nvrtc, "symbol": binary.symbol, "log": binary.log}
        head["sha256"] = hashlib.sha256(binary.code).hexdigest()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(json.dumps(head).encode() + b"\n" + binary.code)
                Path(temporary).replace(path)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning(
                "cannot keep compiled CUDA kernels in %s (%s): they are compiled anew in each process; attn_cuda's "
                "setting cache_dir names another folder",
                path.parent,
                error,
            )
            self._folder = None


def kernel_folder(cache_dir: str | None) -> Path | None:
    """Where compiled kernels are kept: below `cache_dir`, or below the user's cache folder. None: there is no home."""
    try:
        return (Path("~/.cache/paged-core").expanduser() if cache_dir is None else Path(cache_dir)) / FOLDER
    except RuntimeError as error:
        log.warning("compiled CUDA kernels are not kept (%s): attn_cuda's setting cache_dir names a folder", error)
        return None


def _digest_of(sources: Path) -> str:
    """A hash of every file that a kernel may include."""
    digest = hashlib.sha256()
    for file in sorted(sources.glob("*.cu*")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _read(path: Path) -> Binary | None:
    """What a file of the cache holds; None when there is none or it is not whole."""
    try:
        line, _, code = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        log.warning("cannot read the compiled kernel %s (%s): it is compiled again", path, error)
        return None
    try:
        head = json.loads(line)
        if head["sha256"] == hashlib.sha256(code).hexdigest():
            return Binary(code, head["symbol"], head["log"])
    except (ValueError, KeyError, TypeError):
        pass
    log.warning("the compiled kernel %s is damaged: it is compiled again", path)
    return None


def _lines(said: io.StringIO) -> str:
    return said.getvalue().replace("\0", "").strip()
