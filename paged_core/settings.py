"""Settings: what the user wants, which may say "auto". Sources: flags > environment PAGED_* > paged.toml > defaults.

This file holds every read of the process environment. `Settings` stays user intent; `engine.assemble` turns it into
facts and nothing else rewrites it. Importing this file pulls in no compute library.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import stat
import tempfile
import tomllib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, Self

    from pydantic_core import ErrorDetails

logger = logging.getLogger("paged_core.settings")

PREFIX = "PAGED_"
CONFIG_FILE = "paged.toml"
OTHER_VARIABLES = {
    "PAGED_CONFIG": "path of the settings file, instead of paged.toml in the current folder",
    "PAGED_CACHE_DIR": "folder for compile caches and pulled models, instead of ~/.cache/paged-core",
}
"""Variables that are no field: they say where the files are."""
TABLES = ("serve",)
"""Tables of the settings file, and middle parts of variables (PAGED_SERVE_PORT), that other `Layered` classes read."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(value: Any) -> Any:
    """An amount of memory as bytes: an int, or text such as "2GiB", "512 MB", "1.5GiB". None stays None.

    KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024; a bare number counts bytes.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("is not an amount of memory; write bytes or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _split_names(value: Any) -> Any:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16", "uint8", "float8_e4m3fn"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


class Layered(BaseSettings):
    """Values from flags over environment over a settings file over defaults. Of the file, `table`; "" = its top."""

    table: ClassVar[str] = ""
    model_config = SettingsConfigDict(env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_lookalikes(cls, value: Any, info: ValidationInfo) -> Any:
        """True is no number, though Python says so; a path is as good as its text."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError(f"cannot be {str(value).lower()}")
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, file, in this order; no .env files and no secrets folder."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _file_values(cls.table))

    @classmethod
    def load(cls, **flags: Any) -> Self:
        """Read all sources. Flags that are None or () count as not given.

        Raises ConfigError with one line for each problem: which setting, where it came from, what is wrong with it.
        """
        given = {name: value for name, value in flags.items() if value is not None and value != ()}
        problems = _unknown_variables(cls)
        try:
            settings = cls(**given)
        except ValidationError as error:
            problems += [_explain(cls, detail, given) for detail in error.errors()]
        except SettingsError as error:
            problems.append(f"environment: {error}; a table is written as JSON or as PAGED_PLUGINS__ID__KEY=value")
        except (OSError, ValueError) as error:
            problems.append(f"{config_file()}: {error}")
        if problems:
            raise ConfigError("\n".join(problems))
        return settings


class Settings(Layered):
    """What the user wants. Build it with `Settings.load`; fields that say "auto" or None are decided by the engine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    model: str = Field("smollm2-135m", description="A folder, a .gguf file, a registry name or a Hub id.")
    attn: str = Field("auto", description="Attention backend: a plugin name, or auto.")
    alloc: str = Field("auto", description="Block allocator: a plugin name, or auto.")
    sched: str = Field("auto", description="Scheduler: a plugin name, or auto.")
    preempt: str = Field("auto", description="Preemption: a plugin name, or auto.")
    sampler: str = Field("auto", description="Sampler: a plugin name, or auto.")
    executor: str = Field("auto", description="Executor: a plugin name, or auto.")
    loader: str = Field("auto", description="Model loader: a plugin name, or auto.")
    tensor_parallel_size: int = Field(
        1, ge=1, description="Ranks that share the model, each with a part of every layer (executor exec_tp)."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model runs.")
    dtype: Dtype = Field("auto", description="Element type of weights and activations.")
    kv_dtype: KVDtype = Field(
        "auto",
        description="KV cache element type; auto follows dtype, uint8 and float8_e4m3fn hold about twice the tokens of "
        "bfloat16.",
    )
    quantization: Literal["none", "int8"] = Field(
        "none", description="int8 keeps the weights of linear layers in 8 bits: half the memory of bfloat16, faster."
    )
    block_size: int = Field(16, ge=1, le=256, description="Token slots of one KV block.")
    kv_memory: Bytes | None = Field(
        None,
        ge=1,
        description="Memory of the KV pool, such as 2GiB; unset takes kv_memory_fraction of what is free, on a GPU "
        "what gpu_memory_utilization leaves.",
    )
    kv_memory_fraction: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of the memory left free after the weights that the KV pool takes; half leaves room for "
        "packed weights, activations and other programs.",
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of a GPU's memory for weights, working memory and KV pool, which takes what the others "
        "leave.",
    )
    num_blocks: int | None = Field(
        None, ge=1, description="Blocks of the KV pool, overruling both memory settings; for tests and experts."
    )
    host_memory: Bytes = Field(
        2**30, ge=0, description="Memory of the host pool that swapped requests move to; 0 means no swapping."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence in tokens, prompt and output together; unset takes the model's limit."
    )
    max_num_seqs: int = Field(256, ge=1, description="Sequences that run at the same time.")
    max_num_batched_tokens: int | None = Field(
        None, ge=1, description="Token budget of one step; unset is chosen for the device."
    )
    chunked_prefill: bool = Field(True, description="Split long prompts over several steps.")
    prefix_cache: bool = Field(True, description="Share the KV blocks of equal prompt beginnings.")
    logprobs_mode: LogprobsMode = Field(
        "raw_logprobs",
        description="Log-probabilities reported: of the raw logits or of what was sampled from; or those logits.",
    )
    max_logprobs: int = Field(
        50, ge=-1, description="Most log-probabilities a token a request may ask for; -1 allows the whole vocabulary."
    )
    structured_backend: Literal["auto", "xgrammar", "llguidance"] = Field(
        "auto", description="Compiler of grammars for requests that name none; auto looks at each grammar."
    )
    structured_timeout: float = Field(10.0, gt=0, le=600, description="Seconds that compiling one grammar may take.")
    structured_memory: Bytes = Field(2**30, ge=2**26, description="Memory that compiling one grammar may take.")
    structured_cache: Bytes = Field(
        2**28, ge=2**20, description="Memory for compiled grammars; one alone may take a quarter of it."
    )
    jump_forward: bool = Field(True, description="Append what a grammar forces several tokens at a time, undrawn.")
    seed: int | None = Field(None, description="Seed of requests that bring none; unset draws a new one each time.")
    threads: int | None = Field(None, ge=1, description="Compute threads; unset takes the library's default.")
    enforce_eager: bool = Field(
        False, description="Launch every kernel of a step by itself on a GPU, instead of CUDA graphs of decode steps."
    )
    profile: str | None = Field(
        None, description="Time every part of every step and write a Chrome trace to this file at the end."
    )
    audit: bool = Field(False, description="Check every law of the block tables after each step (slow).")
    disable_plugins: Names = Field(
        (), description="Plugins not to load, by plugin id or distribution name, separated by commas."
    )
    plugin_autoload: bool = Field(True, description="Load installed third-party plugins; false keeps first-party ones.")
    plugin_modules: Names = Field(
        (), description="More plugins to load: module names, .py files or package folders, separated by commas."
    )
    hash_seed: int | None = Field(
        None, description="Root of the prefix-cache hashes; unset is random for each process."
    )
    plugins: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Tables of settings by plugin id: [plugins.ID] in the file, PAGED_PLUGINS__ID__KEY outside.",
    )


def variable(field: str) -> str:
    """The environment variable of a settings field."""
    return PREFIX + field.upper()


def config_file() -> Path | None:
    """The settings file: PAGED_CONFIG, which must exist, or paged.toml of the current folder when it is there."""
    chosen = os.environ.get("PAGED_CONFIG")
    if chosen:
        if not Path(chosen).is_file():
            raise ConfigError(f"PAGED_CONFIG names {chosen}, which is not a file")
        return Path(chosen)
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() else None


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `changes`: for a process that it starts."""
    return {**os.environ, **changes}


def prefer_in_environment(values: Mapping[str, str]) -> None:
    """Variables of this process and its children for libraries that are configured by them; the user's own win."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def did_you_mean(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """`; did you mean X?` when something known is close to `name`, else nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _file_values(table: str) -> dict[str, Any]:
    path = config_file()
    values = tomllib.loads(path.read_text()) if path is not None else {}
    if not table:
        return {name: value for name, value in values.items() if name not in TABLES}
    if not isinstance(values.get(table, {}), dict):
        raise ValueError(f"{table} must be a table, [{table}]")
    return dict(values.get(table, {}))


def _unknown_variables(settings: type[Layered]) -> list[str]:
    prefix = settings.model_config["env_prefix"]
    known = {prefix + field.upper(): field for field in settings.model_fields}
    known |= OTHER_VARIABLES if prefix == PREFIX else {}
    others = tuple(f"{PREFIX}{table.upper()}_" for table in TABLES if table != settings.table)
    names = sorted(name for name in os.environ if name.upper().startswith(prefix))
    names = [name for name in names if not name.upper().startswith(others)]
    return [
        f"{name}: no such setting{did_you_mean(name.upper(), known)}"
        for name in names
        if name.upper().split("__")[0] not in known or ("__" in name and not name.upper().startswith("PAGED_PLUGINS__"))
    ]


def _explain(settings: type[Layered], detail: ErrorDetails, flags: Mapping[str, Any]) -> str:
    """One of pydantic's errors as one line that names its source."""
    name = str(detail["loc"][0])
    path = ".".join(map(str, detail["loc"]))
    named = settings.model_config["env_prefix"] + name.upper()
    if name in flags:
        where = path
    elif any(key.upper().split("__")[0] == named for key in os.environ):
        where = f"{named} ({path})"
    else:
        where = f"{config_file()}: {path}"
    if detail["type"] == "extra_forbidden":
        return f"{where}: no such setting{did_you_mean(name, list(settings.model_fields))}"
    return f"{where}: {detail['msg'].removeprefix('Value error, ')} (got {detail['input']!r})"


def cache_dir() -> Path:
    """The folder for compile caches and pulled models, created when missing; private to this user.

    PAGED_CACHE_DIR, else XDG_CACHE_HOME/paged-core, else ~/.cache/paged-core. Where that cannot be written, belongs to
    somebody else, is reached by somebody else's link or is open to all, a fresh temporary folder of this process
    serves instead, and one warning says why (case C06).
    """
    chosen = os.environ.get("PAGED_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(chosen or os.path.join(base, "paged-core"))).absolute()
    reason = _why_unsafe(folder)
    return folder if reason is None else _temporary_cache(folder, reason)


def _why_unsafe(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        link, target = folder.lstat(), folder.stat()
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    if os.name == "posix":
        if {link.st_uid, target.st_uid} != {os.geteuid()}:
            return "belongs to another user"
        if target.st_mode & stat.S_IWOTH:
            return "can be written by everybody"
    return None if os.access(folder, os.W_OK | os.X_OK) else "is not writable"


@cache  # one folder and one warning for a process
def _temporary_cache(folder: Path, reason: str) -> Path:
    temporary = Path(tempfile.mkdtemp(prefix="paged-core-"))
    owner = os.getpid()
    # A forked child runs the same exit handlers; only the process that made the folder removes it.
    atexit.register(lambda: shutil.rmtree(temporary, ignore_errors=True) if os.getpid() == owner else None)
    logger.warning(
        "the cache folder %s %s; this run uses %s, which is removed at the end. Set PAGED_CACHE_DIR to a folder of "
        "your own to keep compiled kernels and pulled models",
        folder,
        reason,
        temporary,
    )
    return temporary
