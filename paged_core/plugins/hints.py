"""What to tell someone who asks for a first-party plugin that is not installed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hint:
    """One first-party plugin: what it is, and whether it needs an NVIDIA GPU."""

    summary: str
    gpu: bool = False


FIRST_PARTY = {
    "load_hf": Hint("the loader of Hugging Face folders"),
    "load_gguf": Hint("the loader of GGUF files"),
    "attn_torch": Hint("the plain reference attention, for any device"),
    "attn_cpu": Hint("the compiled attention for CPUs"),
    "attn_triton": Hint("the attention for GPUs written in Triton", gpu=True),
    "attn_cuda": Hint("the attention for NVIDIA GPUs written in CUDA C++", gpu=True),
    "alloc_cow": Hint("the allocator with copy-on-write and prefix cache"),
    "alloc_radix": Hint("the allocator with a radix tree of prefixes"),
    "sched_fcfs": Hint("the first-come-first-served scheduler"),
    "sched_prefix": Hint("the scheduler that groups requests by prefix"),
    "sched_prefill_first": Hint("the scheduler of vLLM's paper, prompts in steps of their own"),
    "sched_no_evict": Hint("the scheduler that never preempts"),
    "sched_max_utilization": Hint("the scheduler that fills the pool and pauses"),
    "sched_peak": Hint("the scheduler that predicts the peak of memory"),
    "sched_priority": Hint("the scheduler that looks at priorities"),
    "preempt_swap": Hint("preemption by swapping blocks to the host"),
    "preempt_recompute": Hint("preemption by computing again"),
    "sample_torch": Hint("the sampler written in torch"),
    "exec_local": Hint("the executor inside this process"),
    "exec_tp": Hint("the tensor-parallel executor"),
    "exec_ray": Hint("the executor on Ray actors"),
    "exec_sim": Hint("the executor that simulates time by a cost model"),
}
"""The names this project gives out. One that is not installed is met with the command that installs it."""


def distribution_of(plugin: str) -> str:
    """The distribution that brings a first-party plugin on its own."""
    return "paged-" + plugin.replace("_", "-")


def nvidia_visible() -> bool:
    """Whether an NVIDIA driver or device shows on this machine, found out without loading any library."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None


def install_hint(plugin: str, gpu_here: bool) -> str:
    """What `plugin` is, how to get it and, for a GPU plugin on a machine without one, what else is missing.

    Empty when the name is none of ours.
    """
    hint = FIRST_PARTY.get(plugin)
    if hint is None:
        return ""
    text = f". {plugin} is {hint.summary} and comes as a plugin: pip install {distribution_of(plugin)}."
    if hint.gpu and not gpu_here:
        text += " It also needs an NVIDIA GPU, and this machine shows none (no /dev/nvidia0, no nvidia-smi)."
    return text
