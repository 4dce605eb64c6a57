"""MetaAccelerator and `device_only`: work for a device that holds no numbers, and an error wherever the host wants one.

torch's device "meta" knows shapes and types alone. Whatever needs a number of the device (`item`, `tolist`, `nonzero`,
a boolean mask, `if tensor`) raises by itself; copies between host and device are caught here, unless they are an
accelerator's own or `uploaded`. What runs under it never makes the host wait for a GPU, and uses nothing that only a
CPU has.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from paged_core.device import staging, upload
from paged_core.testing.accelerator import FakeAccelerator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

META = torch.device("meta")


class HostWaitsError(AssertionError):
    """Numbers would travel between host and device while the host stands still."""


class MetaAccelerator(FakeAccelerator):
    """Does at once what it is given, on tensors without numbers; its copies move none."""

    def __init__(self) -> None:
        super().__init__(is_eager=True)
        self.device = META

    def holds(self, tensor: Tensor) -> bool:
        """By the tensor's device."""
        return tensor.device.type == "meta"

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Looks at shapes and counts."""
        assert target.shape == source.shape, (target.shape, source.shape)
        self.num_copies += 1


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where an operator takes tensors from host to device or back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        found = [*args, *(kwargs or {}).values(), *(made if isinstance(made, tuple | list) else [made])]
        devices = {value.device.type for value in found if isinstance(value, torch.Tensor) and value.dim()}
        if len(devices) > 1 or self._sends_number(func, args, kwargs or {}):
            raise HostWaitsError(f"{func} takes numbers between host and device: the host would wait for it")
        return made

    @staticmethod
    def _sends_number(func: Any, args: Any, kwargs: Any) -> bool:
        """A tensor without dimensions that is converted to the device; as an operand it is a number like any other."""
        source = args[0] if args else None
        return (
            func is torch.ops.aten._to_copy.default
            and isinstance(source, torch.Tensor)
            and kwargs.get("device") is not None
            and torch.device(kwargs["device"]).type != source.device.type
        )


class _WatchMaking(TorchFunctionMode):
    """Raises where a tensor of the device is made of numbers of the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = torch.device((kwargs or {}).get("device") or "cpu")
        if func in (torch.tensor, torch.as_tensor) and device.type != "cpu":
            raise HostWaitsError(f"{func.__name__} sends numbers to the device: the host would wait for it")
        return func(*args, **(kwargs or {}))


@contextmanager
def device_only() -> Iterator[None]:
    """Raise HostWaitsError, or torch's own error, where the host would wait for the device."""

    def uploaded(array: NDArray[np.generic], device: torch.device) -> Tensor:
        return torch.empty(array.shape, dtype=torch.from_numpy(array[:0].copy()).dtype, device=device)

    with ExitStack() as stack:
        for module in (upload, staging):
            stack.enter_context(mock.patch.object(module, "uploaded", uploaded))
        stack.enter_context(_Watch())  # type: ignore[no-untyped-call]
        stack.enter_context(_WatchMaking())
        yield


def would_wait(work: Callable[[], object]) -> str:
    """Where the host would wait in `work`, or "" if it waits nowhere. Whatever else goes wrong in it is raised."""
    try:
        with device_only():
            work()
    except HostWaitsError as error:
        return _first_line(error)
    except (RuntimeError, TypeError) as error:  # by operator; torch has no kind of its own for it, but names the device
        if "meta" not in str(error).lower():
            raise
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
