"""Small arrays of the host become tensors of the device without the host waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def uploaded(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of its own on `device`; `array` may be read-only, and may change as soon as this returns.

    It goes through pinned memory of torch's allocator, which hands that memory out again only after the copy is done.
    `torch.tensor(array, device="cuda")` would stop the host until all work of the stream is done.
    """
    if device.type != "cuda":
        return torch.tensor(array, device=device)
    dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    pinned = torch.empty(array.shape, dtype=dtype, pin_memory=True)
    pinned.numpy()[...] = array
    return pinned.to(device, non_blocking=True)


def beside(array: NDArray[Any], tensor: torch.Tensor) -> torch.Tensor:
    """`array` on the device of `tensor`: `uploaded`, or on the host the array's own memory."""
    return torch.from_numpy(array) if tensor.device.type == "cpu" else uploaded(array, tensor.device)
