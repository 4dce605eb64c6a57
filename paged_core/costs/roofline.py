"""Roofline: a step takes at least as long as its bytes need from memory, and as its operations need of the arithmetic.

    matrices    max(weights read once, products of all tokens), and the head for every draw
    attention   max(keys and values read, products of every token with all before it)
    on top      a fixed time a step, a layer and a sequence, and two all-reduces a layer between several devices

Every matrix, head and KV head is split over the devices; what each holds it reads by itself (tensor parallel).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.costs.work import ModelWork, model_work

if TYPE_CHECKING:
    from paged_core.api.model import ModelSpec
    from paged_core.costs.devices import Device
    from paged_core.costs.work import StepWork


@dataclass(frozen=True, slots=True)
class Roofline:
    """Any model on any device. Elements of weights and of keys and values take so many bytes."""

    model: ModelWork
    device: Device
    num_devices: int = 1
    weight_bytes: float = 2
    kv_bytes: float = 2

    def step_s(self, work: StepWork) -> float:
        """Seconds."""
        model, device, share = self.model, self.device, 1 / self.num_devices
        read_s = 1 / (device.bytes_per_s * device.read_share)
        op_s = 1 / (device.ops_per_s * device.ops_share)
        read = model.read_elements(work.num_tokens) + (model.head_elements if work.num_draws else 0)
        products = model.token_ops * work.num_tokens + 2.0 * model.head_elements * work.num_draws
        matrices = max(read * self.weight_bytes * read_s, products * op_s)
        kept = (work.decode_context + work.prefill_context) * model.kv_elements * self.kv_bytes
        pairs = work.prefill_squares / 2 + work.decode_context
        attention = max(kept * read_s, pairs * model.pair_ops * op_s)
        num_seqs = work.num_decodes + work.num_prefills
        fixed = device.step_s + model.num_layers * device.layer_s + num_seqs * device.sequence_s
        return (matrices + attention) * share + fixed + self._all_reduces(work.num_tokens)

    def describe(self) -> str:
        """The device and what is assumed of it."""
        many = "" if self.num_devices == 1 else f"{self.num_devices} x "
        device = self.device
        return (
            f"roofline of {many}{device.name}: {device.read_share:.0%} of {device.bytes_per_s / 1e9:,.0f} GB/s, "
            f"{device.ops_share:.0%} of {device.ops_per_s / 1e12:,.0f} TFLOP/s"
        )

    def _all_reduces(self, num_tokens: int) -> float:
        """Two a layer, in a ring: each device sends and receives 2 (k - 1) / k of the bytes."""
        k, device = self.num_devices, self.device
        if k == 1:
            return 0.0
        sent = 2 * (k - 1) / k * num_tokens * self.model.hidden_size * 2
        return 2 * self.model.num_layers * (device.all_reduce_s + sent / (device.link_bytes_per_s * device.read_share))


def roofline(spec: ModelSpec, device: Device, num_devices: int = 1) -> Roofline:
    """The roofline of a model in 16-bit weights, keys and values."""
    return Roofline(model_work(spec), device, num_devices)
