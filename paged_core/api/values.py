"""Checks of values that came from outside: taken as they are or refused with a RequestError that names the field."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from paged_core.errors import RequestError

MAX_STOP_CHARS = 1024
MAX_LOGIT_BIAS = 1024
MAX_TOKEN_IDS = 1 << 18


def shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever a stranger sent."""
    if is_integer(value) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def is_integer(value: Any) -> bool:
    """Whether `value` is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(name: str, value: Any, low: float, high: float, above: bool = False) -> None:
    """RequestError unless `value` is a finite number in [low, high], or above `low`."""
    if not is_integer(value) and (not isinstance(value, float) or not math.isfinite(value)):
        raise RequestError(f"{name} must be a finite number, not {shown(value)}", name)
    if not low <= value <= high or (above and value == low):
        interval = f"{'(' if above else '['}{low:g}, {high:g}]"
        raise RequestError(f"{name} must lie in {interval}, got {shown(value)}", name)


def integer(name: str, value: Any, low: int, high: int) -> None:
    """RequestError unless `value` is an int in [low, high]."""
    if not is_integer(value):
        raise RequestError(f"{name} must be an integer, not {shown(value)}", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must lie in [{low}, {high}], got {shown(value)}", name)


def optional_integer(name: str, value: Any, low: int, high: int) -> None:
    """As `integer`, or None."""
    if value is not None:
        integer(name, value, low, high)


def sequence(name: str, values: Any, what: str, limit: int) -> list[Any]:
    """A list of its own, its length checked before anything is copied."""
    if values is None:
        return []
    if not isinstance(values, (list, tuple)):
        raise RequestError(f"{name} has the wrong type: a list of {what} is needed, not {shown(values)}", name)
    if len(values) > limit:
        raise RequestError(f"{name} holds {len(values)} {what}; at most {limit} are allowed", name)
    return list(values)


def strings(name: str, values: Any, limit: int) -> list[str]:
    """A list of its own of non-empty strings."""
    result = sequence(name, values, "strings", limit)
    for value in result:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_CHARS:
            raise RequestError(
                f"{name} must hold strings of 1 to {MAX_STOP_CHARS} characters, not {shown(value)}", name
            )
    return result


def token_ids(name: str, values: Any, limit: int = MAX_TOKEN_IDS) -> list[int]:
    """A list of its own of integers >= 0."""
    ids = sequence(name, values, "token ids", limit)
    for value in ids:
        if not is_integer(value) or value < 0:
            raise RequestError(f"{name} must hold token ids (integers >= 0), not {shown(value)}", name)
    return ids


def bias_values(bias: Any) -> dict[int, float]:
    """A dict of its own from token id to a number in [-100, 100]. JSON has text as keys."""
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, not {shown(bias)}", "logit_bias")
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are allowed", "logit_bias")
    result: dict[int, float] = {}
    for key, value in bias.items():
        # JSON has only text as keys: "12" is token 12, but neither "012" nor "1.0" nor " 12" is a token.
        token = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        if not is_integer(token) or token < 0 or (isinstance(key, str) and str(token) != key):
            raise RequestError(f"logit_bias has the key {shown(key)}, which is not a token id", "logit_bias")
        number("logit_bias", value, -100.0, 100.0)
        result[token] = float(value)
    return result
