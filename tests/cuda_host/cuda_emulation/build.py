"""Shared objects from C++ sources, kept in the user's cache folder under a hash of everything that goes into them."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
RUNTIME = ROOT / "runtime"
COMPILER = "g++"
COMPILER_MISSING = (
    f"the emulation of CUDA runs on Linux, not on {sys.platform}"
    if sys.platform != "linux"
    else f"the emulation of CUDA needs the compiler {COMPILER}, which is not installed (Debian: apt install g++)"
    if shutil.which(COMPILER) is None
    else None
)
# Arithmetic as on the device: a product and a sum are fused where the source says fmaf and nowhere else.
COMMON: tuple[str, ...] = (
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-gnu-unique",
    "-fvisibility=hidden",
)
COMMON += ("-g1", "-gdwarf-4")  # what addr2line of older binutils reads
COMMON += ("-U_FORTIFY_SOURCE",)  # its longjmp does not leave one stack for another
# What the device leaves undefined and a host does quietly ends in a trap: indices of arrays, shifts, signed overflow.
SANITIZE = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")


class Build:
    """Compiles. Two processes that want the same object wait for each other: it is compiled once.

    Raises RuntimeError with the compiler's messages where a source does not compile, or without a compiler.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def runtime(self) -> Path:
        """The runtime, to be loaded before any kernel, its symbols for all."""
        text = "".join(f'#include "{path.name}"\n' for path in sorted(RUNTIME.glob("*.cpp")))
        return self._object(text, (RUNTIME, INCLUDE), ("-O3", *COMMON))

    def kernel(self, folder: Path, source: str, name: str, *, sanitize: bool = False) -> Path:
        """`name`, an instantiation of a kernel of `folder`/`source`, behind the entry that the runtime calls."""
        text = f'#include "{source}"\nPAGED_HOST_ENTRY({name})\n'
        flags = ("-O1", *COMMON, "-DPAGED_HOST", *(SANITIZE if sanitize else ()))
        return self._object(text, (folder, INCLUDE), flags)

    def _object(self, text: str, folders: tuple[Path, ...], flags: tuple[str, ...]) -> Path:
        if COMPILER_MISSING is not None:
            raise RuntimeError(COMPILER_MISSING)
        flags = (*flags, *_processor_flags())
        digest = hashlib.sha256("\0".join((text, _compiler_version(), *flags)).encode())
        for name, body in sorted(_included(text, folders).items()):
            digest.update(f"\0{name}\0{body}".encode())
        path = self._folder_for_objects() / f"{digest.hexdigest()[:32]}.so"
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._compile(text, path, [*flags, *(f"-I{folder}" for folder in folders)])
        return path

    def _folder_for_objects(self) -> Path:
        if self._folder is None:
            from paged_core.settings import cache_dir

            self._folder = cache_dir() / "cuda-host"
        return self._folder

    def _compile(self, text: str, path: Path, flags: list[str]) -> None:
        """Through a file of this process, so that an interrupted compiler leaves nothing half done under the name."""
        source, unfinished = path.with_suffix(".cpp"), path.with_suffix(f".{os.getpid()}")
        source.write_text(text)
        command = [COMPILER, *flags, str(source), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            unfinished.unlink(missing_ok=True)
            raise RuntimeError(f"{' '.join(command)} failed:\n{text}\n{done.stderr[:8000]}")
        unfinished.rename(path)


def _included(text: str, folders: tuple[Path, ...]) -> dict[str, str]:
    """Every file that a source includes, by the name under which it does, and so on."""
    found: dict[str, str] = {}
    waiting = [text]
    while waiting:
        for name in re.findall(r'^#include "([^"]+)"', waiting.pop(), re.MULTILINE):
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if name not in found and path is not None:
                found[name] = path.read_text()
                waiting.append(found[name])
    return found


def line_of(code: int) -> str:
    """file:line of a machine instruction of a loaded object, as far as its debug information tells; else nothing."""
    for line in Path("/proc/self/maps").read_text().splitlines() if Path("/proc/self/maps").exists() else ():
        fields = line.split(maxsplit=5)
        first, last = (int(number, 16) for number in fields[0].split("-"))
        if first <= code < last and len(fields) == 6 and shutil.which("addr2line"):
            offset = code - first + int(fields[2], 16)
            command = ["addr2line", "-s", "-i", "-e", fields[5], hex(offset)]
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
            return " < ".join(place for place in found if place and not place.startswith("?"))
    return ""


@cache
def load_runtime() -> ctypes.CDLL:
    """The runtime of this process."""
    return ctypes.CDLL(str(Build().runtime()), mode=ctypes.RTLD_GLOBAL)


@cache
def _compiler_version() -> str:
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout


@cache
def _processor_flags() -> tuple[str, ...]:
    """Instructions for fmaf where the processor has them: a call into the C library takes many times as long."""
    info = Path("/proc/cpuinfo")
    features = info.read_text().split() if info.exists() else []
    return ("-mfma", "-mavx2") if "fma" in features and "avx2" in features else ()
