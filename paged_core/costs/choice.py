"""A cost model by what the user wrote: a name, a file of `paged-core calibrate`, or an attribute of a module."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast

from paged_core.costs.calibrated import calibrated
from paged_core.costs.devices import find_device
from paged_core.costs.fitted import read_calibration
from paged_core.costs.models import PAPER_SLOTS, find_model, plain_name
from paged_core.costs.roofline import roofline
from paged_core.costs.work import model_work
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from paged_core.api.model import ModelSpec
    from paged_core.costs.devices import Device
    from paged_core.costs.work import CostModel

_ELEMENT_BYTES = 2
_WORKING_BYTES = 1 << 30
"""Of a device, besides weights and pool: activations of a large step, workspaces of libraries."""


@dataclass(frozen=True, slots=True)
class Server:
    """A model on some devices. `model` is the name it is known by, `spec` its shape."""

    model: str
    spec: ModelSpec
    device: Device
    num_devices: int = 1

    def pool_tokens(self) -> int:
        """KV slots: the paper's for its servers, else what weights leave of the usable memory. ConfigError: nothing."""
        known = PAPER_SLOTS.get((plain_name(self.model), self.device.name, self.num_devices))
        if known is not None:
            return known
        work, device = model_work(self.spec), self.device
        usable = self.num_devices * (device.memory_bytes * device.usable_share - _WORKING_BYTES)
        weights = work.stored_elements * _ELEMENT_BYTES
        tokens = int((usable - weights) // (work.kv_elements * _ELEMENT_BYTES))
        if tokens < 1:
            raise ConfigError(
                f"{self.model} has {weights / 1e9:.0f} GB of weights; {self.num_devices} x {device.name} offer "
                f"{usable / 1e9:.0f} GB: take more devices, or name the pool by num_blocks"
            )
        return tokens

    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all devices."""
        return model_work(self.spec).kv_elements * _ELEMENT_BYTES


def find_cost(name: str, server: Server) -> CostModel:
    """The cost model that `name` means for `server`. ConfigError when there is none.

    auto        published coefficients where there are some, mixed steps by the roofline; else the roofline
    calibrated  published coefficients only: mixed steps are refused
    roofline    the roofline
    *.json      what `paged-core calibrate` wrote
    a.b:c       attribute c of module a.b: a cost model, or a callable that is given the server and returns one
    """
    if name in ("auto", "calibrated"):
        found = calibrated(plain_name(server.model), server.device.name, server.num_devices)
        if found is not None:
            return replace(found, mixed=_roofline(server)) if name == "auto" else found
        if name == "calibrated":
            raise ConfigError(
                f"nobody has published coefficients for {server.model} on {server.num_devices} x {server.device.name}: "
                "take roofline, or measure with `paged-core calibrate`"
            )
        return _roofline(server)
    if name == "roofline":
        return _roofline(server)
    if name.endswith(".json"):
        return read_calibration(name).fitted
    if ":" in name:
        return _imported(name, server)
    close = get_close_matches(name, ("auto", "calibrated", "roofline"), 1)
    hint = f"; did you mean {close[0]}? There are" if close else "; there are"
    raise ConfigError(f"no cost model {name!r}{hint} auto, calibrated, roofline, a .json file or module:attribute")


def _roofline(server: Server) -> CostModel:
    return roofline(server.spec, server.device, server.num_devices)


def _imported(name: str, server: Server) -> CostModel:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        made = found if hasattr(found, "step_s") and not isinstance(found, type) else found(server)
    except Exception as error:
        raise ConfigError(f"the cost model {name} cannot be had: {type(error).__name__}: {error}") from error
    if not hasattr(made, "step_s"):
        raise ConfigError(f"the cost model {name} is a {type(made).__name__} without step_s(work)")
    return cast("CostModel", made)


def device_called(name: str) -> Device:
    """`find_device`; the machine that a .json file of `paged-core calibrate` was measured on is one as well."""
    return read_calibration(name).device if name.endswith(".json") else find_device(name)


def model_called(name: str) -> ModelSpec:
    """`find_model`; the model that such a file was measured with is one as well."""
    return read_calibration(name).spec if name.endswith(".json") else find_model(name)
