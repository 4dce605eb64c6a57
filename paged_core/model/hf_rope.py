"""Rotary embeddings as config.json describes them, old spelling (rope_scaling, type) and new (rope_parameters)."""

from __future__ import annotations

from dataclasses import replace

from paged_core.api.model import RopeSpec
from paged_core.errors import ModelFormatError, ModelUnsupportedError
from paged_core.model.hf_config import ConfigReader

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_KNOWN_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
        *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"),
        *("short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
    )
)
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_rope(config: ConfigReader, head_dim: int, theta: float, original: int | None = None) -> tuple[RopeSpec, int]:
    """The model's one rotary embedding, and its longest sequence in tokens.

    `theta` and `original` (the length before scaling) are the family's defaults. The limit is
    max_position_embeddings, which by transformers' convention is the scaled length, with two exceptions: linear and
    dynamic multiply it by their factor ("don't update max_position_embeddings", say their docs), and yarn reaches
    at least factor x original length when the original is stated. It is never scaled twice.
    """
    section = _section(config)
    if any(section.has(kind) for kind in _LAYER_TYPES):
        raise ModelUnsupportedError(
            f"config.json: {section.name('')[:-1]} differs by layer type, which this architecture is not known to do"
        )
    rope = _rope(section, config, head_dim, config.number("rope_theta", theta), original)
    limit = config.integer("max_position_embeddings")
    if rope.kind in ("linear", "dynamic"):
        limit = int(limit * rope.factor)
    elif rope.kind == "yarn" and _states_original(section, config):
        limit = max(limit, int(rope.original_max_position * rope.factor))
    return rope, limit


def read_layer_ropes(config: ConfigReader, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Gemma 3: the rotary embeddings of its full and of its sliding layers.

    Old files scale the full layers by rope_scaling and give the sliding ones rope_local_base_freq; new files nest both
    in rope_parameters.
    """
    section = _section(config)
    if any(section.has(kind) for kind in _LAYER_TYPES):
        full, sliding = (section.section(kind) or ConfigReader({}) for kind in _LAYER_TYPES)
    else:
        full, sliding = section, ConfigReader({})
    return (
        _rope(full, config, head_dim, config.number("rope_theta", 1e6)),
        _rope(sliding, config, head_dim, config.number("rope_local_base_freq", 1e4)),
    )


def _section(config: ConfigReader) -> ConfigReader:
    """The object describing the scaling; an empty one when there is none."""
    for key in ("rope_scaling", "rope_parameters"):
        section = config.section(key)
        if section is not None and section.keys():
            return section
    return ConfigReader({}, "rope_parameters.")


def _states_original(section: ConfigReader, config: ConfigReader) -> bool:
    key = "original_max_position_embeddings"
    return section.has(key) or config.has(key)


def _rope(
    section: ConfigReader, config: ConfigReader, head_dim: int, theta: float, original: int | None = None
) -> RopeSpec:
    kind = _kind(section)
    rotary_dim = int(head_dim * section.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ModelUnsupportedError(
            f"config.json: {rotary_dim} of {head_dim} dimensions would be rotated; an even number of them is needed"
        )
    rope = RopeSpec(section.number("rope_theta", theta), rotary_dim)
    if kind == "default":
        return rope
    length = _original_length(section, config, kind, original)
    stated = section.number("factor") if section.has("factor") else None
    if stated is None and kind in ("linear", "dynamic", "llama3"):
        raise ModelFormatError(f"config.json lacks {section.name('factor')}, which rope type {kind!r} needs")
    if stated is not None and stated <= 0:
        raise ModelFormatError(f"config.json: {section.name('factor')} is {stated}; it must be positive")
    factor = config.integer("max_position_embeddings") / length if stated is None else stated
    return _detailed(replace(rope, kind=kind, factor=factor, original_max_position=length), section)


def _detailed(rope: RopeSpec, section: ConfigReader) -> RopeSpec:
    """The fields that only some kinds have."""
    strength = section.number("attention_factor") if section.has("attention_factor") else None
    match rope.kind:
        case "llama3":
            low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
            return replace(rope, low_freq_factor=low, high_freq_factor=high)
        case "yarn":
            return replace(
                rope,
                attention_factor=strength,
                beta_fast=section.number("beta_fast", 32) or 32.0,
                beta_slow=section.number("beta_slow", 1) or 1.0,
                mscale=section.number("mscale") if section.has("mscale") else None,
                mscale_all_dim=section.number("mscale_all_dim") if section.has("mscale_all_dim") else None,
                truncate=section.flag("truncate", True),
            )
        case "longrope":
            short, long = section.numbers("short_factor"), section.numbers("long_factor")
            for key, factors in (("short_factor", short), ("long_factor", long)):
                if len(factors) != rope.rotary_dim // 2:
                    raise ModelFormatError(
                        f"config.json: {section.name(key)} has {len(factors)} entries; {rope.rotary_dim // 2} expected"
                    )
            return replace(rope, attention_factor=strength, short_factor=short, long_factor=long)
    return rope


def _kind(section: ConfigReader) -> str:
    unknown = sorted(set(section.keys()) - _KNOWN_KEYS)
    if unknown:
        raise ModelUnsupportedError(f"config.json: {section.name(unknown[0])} is not known to this engine")
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "su" or (kind == "yarn" and section.has("short_factor")):
        return "longrope"  # what Phi-3 called it before it had a name
    if kind not in _KINDS:
        raise ModelUnsupportedError(
            f"config.json: {section.name('rope_type')} {kind!r} is not one of {', '.join(_KINDS)}"
        )
    return kind


def _original_length(section: ConfigReader, config: ConfigReader, kind: str, original: int | None) -> int:
    """Length before scaling, in transformers' order: beside the section, the family's default, inside it, the maximum.

    linear and dynamic have no such key; for them it is max_position_embeddings.
    """
    maximum = config.integer("max_position_embeddings")
    if kind in ("linear", "dynamic"):
        return maximum
    key = "original_max_position_embeddings"
    if config.has(key):
        return config.integer(key)
    return original or section.integer(key, maximum)
