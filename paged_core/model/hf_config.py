"""ConfigReader: typed access to a Hugging Face config.json, every complaint naming the key."""

from __future__ import annotations

from typing import Any

from paged_core.errors import ModelFormatError, ModelUnsupportedError

_REQUIRED = object()


class ConfigReader:
    """Wraps one JSON object. `where` prefixes key names in messages ("rope_scaling.", ...).

    A key that is absent or null takes the default; without a default it is a ModelFormatError, and so is a value of
    the wrong type. Booleans are not integers here.
    """

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(key) is not None

    def mentions(self, key: str) -> bool:
        """Whether the key is there, null included (null and absent differ where an absent key has a default)."""
        return key in self._values

    def name(self, key: str) -> str:
        """The key as messages show it."""
        return f"{self._where}{key}"

    def keys(self) -> list[str]:
        """Keys with a value."""
        return [key for key in self._values if self.has(key)]

    def raw(self, key: str) -> Any:
        """The value as parsed; None when absent."""
        return self._values.get(key)

    def integer(self, key: str, default: Any = _REQUIRED, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        if value < minimum:
            raise ModelFormatError(f"config.json: {self.name(key)} is {value}; at least {minimum} makes sense")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = self._get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value
            or abs(value) == float("inf")
        ):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in value):
            raise self._wrong(key, value, "a list of numbers")
        return tuple(float(x) for x in value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or any(not isinstance(x, str) for x in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """A whole number or a list of them, as a tuple; empty when absent."""
        value = self._get(key, [])
        items = value if isinstance(value, list) else [value]
        if any(isinstance(x, bool) or not isinstance(x, int) for x in items):
            raise self._wrong(key, value, "a whole number or a list of them")
        return tuple(items)

    def section(self, key: str) -> ConfigReader | None:
        """A nested object, or None when absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return ConfigReader(value, f"{self._where}{key}.")

    def refuse(self, key: str, why: str) -> None:
        """Raises ModelUnsupportedError when the key holds a true or non-empty value."""
        if self._values.get(key):
            raise ModelUnsupportedError(f"config.json sets {self.name(key)} = {self._values[key]!r}: {why}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelFormatError(
                f"config.json lacks {self.name(key)}, which this architecture needs; the file is incomplete"
            )
        return default

    def _wrong(self, key: str, value: Any, wanted: str) -> ModelFormatError:
        return ModelFormatError(f"config.json: {self.name(key)} is {value!r}; {wanted} was expected")
