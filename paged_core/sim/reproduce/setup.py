"""Setups: the systems that the paper compares, each as plugins of this engine around one model on one machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from paged_core.sim.system import System

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["vllm", "oracle", "pow2", "max", "ft"]
Mode = Literal["basic", "sample", "beam"]
ORCAS: tuple[Kind, ...] = ("oracle", "pow2", "max")
KINDS: tuple[Kind, ...] = ("vllm", *ORCAS, "ft")
NAMES: Mapping[Kind, str] = {
    "vllm": "vLLM",
    "oracle": "Orca (Oracle)",
    "pow2": "Orca (Pow2)",
    "max": "Orca (Max)",
    "ft": "FasterTransformer",
}
MAX_LEN = 2048
"""Positions of the OPT models: no request may be longer, and `max` reserves as much."""


MACHINES: Mapping[str, tuple[str, int]] = {
    "opt-13b": ("a100-40gb", 1),
    "opt-66b": ("a100-40gb", 4),
    "opt-175b": ("a100-80gb", 8),
    "llama-13b": ("a100-40gb", 1),  # its memory is not stated; that of OPT-13B is assumed
}
"""Device and number of devices of each model in the paper (its Table 1)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One system under one kind of load, but for the rate.

    lengths     a name in `paged_core.sim.reproduce.load`
    width       samples or beams a request
    preempt     how a victim leaves (paged systems only)
    """

    kind: Kind = "vllm"
    model: str = "opt-13b"
    lengths: str = "sharegpt"
    mode: Mode = "basic"
    width: int = 1
    block_size: int = 16
    preempt: str = "recompute"

    @property
    def name(self) -> str:
        """Unique among setups, readable: `vllm opt-13b sharegpt`, and what differs from the paper's defaults."""
        parts = [self.kind, self.model, self.lengths]
        parts += [f"{self.mode}-{self.width}"] if self.mode != "basic" else []
        parts += [f"block-{self.block_size}"] if self.block_size != 16 else []
        parts += [self.preempt] if self.preempt != "recompute" else []
        return " ".join(parts)

    def system(self) -> System:
        """The engine that plays this system: the paper's scheduler, and the allocator that makes the difference."""
        device, num_devices = MACHINES[self.model]
        base = System(
            model=self.model,
            device=device,
            num_devices=num_devices,
            block_size=self.block_size,
            max_model_len=MAX_LEN,
            chunked_prefill=False,
        )
        if self.kind == "vllm":
            shares = self.lengths.startswith("translation")
            return replace(
                base,
                alloc="alloc_cow",
                sched="sched_prefill_first",
                preempt=f"preempt_{self.preempt}",
                prefix_cache=shares,
            )
        reservation = "max" if self.kind == "ft" else self.kind
        scheduler = "sched_static" if self.kind == "ft" else "sched_prefill_first"
        plugins: dict[str, dict[str, Any]] = {"alloc_contiguous": {"reservation": reservation}}
        return replace(base, alloc="alloc_contiguous", sched=scheduler, plugins=plugins)

    def sampling(self) -> dict[str, Any]:
        """What every request asks for beside its length."""
        if self.mode == "sample":
            return {"n": self.width}
        if self.mode == "beam":
            return {"n": self.width, "use_beam_search": True, "beam_width": self.width, "temperature": 0}
        return {}
