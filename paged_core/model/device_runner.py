"""DeviceRunner: steps on a device with a queue of its own. `submit` gives it a step's work, `collect` waits for it.

    submit   moves -> arrays of the step, one copy -> forward pass, for decodes captured -> head -> draws begin
             -> tokens to `drawn`, where the next step finds them -> what the host must be told, one copy back -> event
    collect  event -> samples

The host waits for the device in `collect` and nowhere else, but for steps with prompt log-probabilities, for draws
whose sampler says so (penalties, reports, processors) and for models with a mixture of experts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paged_core.api.batch import StepPlan, StepResult
from paged_core.device.graphs import Graphs, batch_sizes
from paged_core.device.staging import BatchSizes, Staging
from paged_core.device.upload import beside
from paged_core.model.runner import enter, move_blocks, no_result, prompt_logprobs, restart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.api.sampler import Drawing, Sampler
    from paged_core.device.staging import StagedStep
    from paged_core.device.stream import Accelerator, Event
    from paged_core.model.decoder import Decoder
    from paged_core.tracing import Trace

log = logging.getLogger("paged_core.model")


@dataclass(slots=True)
class Flight:
    """A step under way. `told`: pinned memory that holds what the drawing has to be told once `done` has passed."""

    plan: StepPlan
    result: StepResult
    begun: Event
    done: Event
    drawing: Drawing | None = None
    told: Tensor | None = None


class DeviceRunner:
    """Executes plans on `accelerator`, in order. Arguments as those of `Runner`, besides `staging`.

    Without a sampler there are no draws: plans must hold every token they need.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        sampler: Sampler | None,
        caches: tuple[Sequence[Tensor], Sequence[Tensor]],
        staging: Staging,
        accelerator: Accelerator,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._sampler = sampler
        self._caches = caches
        self._staging = staging
        self._accelerator = accelerator
        self._graphs = Graphs(accelerator)
        self._ropes: list[tuple[Tensor, Tensor]] = []
        self._logits = torch.empty((0, decoder.logits_width), device=decoder.device)
        self._kept: list[object] = []

    def watch(self, trace: Trace) -> None:
        """Time what the host does for every step from now on; the device's time is in the results."""
        trace.watch(self, {"_move": "move blocks", "_hidden": "forward", "_decode": "forward", "_begin": "begin draws"})
        trace.watch(self._attention, {"plan": "plan attention", "forward": "attention"})
        self._decoder.watch(trace)

    @torch.inference_mode()
    def capture(self, max_num_seqs: int, why_not: str = "") -> None:
        """Capture steps of decodes up to `max_num_seqs` sequences. Where that is not possible, or there is a reason not
        to, all steps run eagerly and the reason is logged. Call it once, before the first step."""
        why_not = why_not or self._decoder.waits_for_device
        if why_not:
            log.info("steps run without CUDA graphs: %s", why_not)
            return
        sizes = batch_sizes(max_num_seqs)
        device, most = self._decoder.device, sizes[-1]
        self._ropes = self._decoder.rope_room(most) if self._decoder.fused_rope else []
        self._logits = torch.empty((most, self._decoder.logits_width), device=device)
        self._graphs.capture(sizes, self._decode_work)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> Flight:
        """Give the device a step's work."""
        device = self._accelerator
        flight = Flight(plan, no_result(plan), device.event(timed=True), device.event(timed=True))
        flight.begun.record()
        restart(self._sampler, plan)
        self._move(plan)
        if plan.num_tokens:
            size = self._graph_size(plan)
            logits = self._decode(plan, size) if size is not None else self._compute(plan, flight.result)
            if logits is not None and self._sampler is not None:
                self._begin(self._sampler, logits, flight)
        flight.done.record()
        return flight

    @torch.inference_mode()
    def collect(self, flight: Flight) -> StepResult:
        """Wait for a step's work."""
        flight.done.synchronize()
        if flight.drawing is not None:
            told = None if flight.told is None else flight.told.numpy()
            enter(flight.drawing.finish(told), flight.plan, flight.result)
        flight.result.elapsed_s = flight.done.seconds_since(flight.begun)
        return flight.result

    def _move(self, plan: StepPlan) -> None:
        move_blocks(self._attention, self._caches, plan)

    # -- the forward pass -----------------------------------------------------------------------------------------

    def _graph_size(self, plan: StepPlan) -> int | None:
        """The graph that serves this step: one token for each sequence, no more draws than those."""
        num_seqs = len(plan.rows)
        if plan.num_tokens != num_seqs or len(plan.sample_index) > num_seqs or plan.prompt_rows:
            return None
        return self._graphs.size_for(num_seqs)

    def _decode(self, plan: StepPlan, size: int) -> Tensor | None:
        """Logits of the step's draws [draws, vocab] by the graph of `size` sequences."""
        self._plan(self._staging.put(plan, BatchSizes(size, size, size)))
        self._graphs.replay(size)
        return self._logits[: len(plan.sample_index)] if len(plan.sample_index) else None

    def _decode_work(self, size: int) -> Callable[[], object]:
        """What the graph of `size` does with whatever lies in the buffers; a batch of padding is put there."""
        step = self._staging.put(StepPlan.empty(), BatchSizes(size, size, size))
        attention_plan = self._plan(step)
        self._kept += [step, attention_plan]  # what captured work points to stays

        @torch.inference_mode()
        def work() -> None:
            if self._ropes:
                self._decoder.fill_rope_tables(_positions(step), step.batch.rope)
            hidden = self._hidden(step, attention_plan)
            self._decoder.logits(hidden.index_select(0, step.sample_index), self._logits[:size])

        return work

    def _plan(self, step: StagedStep) -> object:
        """Let attention plan a batch that a graph serves: its rotary tables lie where the graph writes them."""
        size = step.batch.num_tokens
        step.batch.rope = [(cos[:size], sin[:size]) for cos, sin in self._ropes]
        return self._attention.plan(step.batch)

    def _compute(self, plan: StepPlan, result: StepResult) -> Tensor | None:
        """Logits of the step's draws, operator by operator; prompt log-probabilities go into `result`."""
        step = self._staging.put(plan)
        step.batch.shared_prefixes = plan.shared_prefixes
        if self._decoder.fused_rope:
            step.batch.rope = self._decoder.rope_tables(_positions(step))
        hidden = self._hidden(step, self._attention.plan(step.batch))
        prompt_logprobs(self._decoder, self._sampler, plan, hidden, result)
        if not len(plan.sample_index):
            return None
        return self._decoder.logits(hidden.index_select(0, step.sample_index))

    def _hidden(self, step: StagedStep, attention_plan: object) -> Tensor:
        tokens = self._staging.take_tokens(step)
        return self._decoder.forward(tokens, _positions(step), self._caches[0], attention_plan)

    # -- draws ----------------------------------------------------------------------------------------------------

    def _begin(self, sampler: Sampler, logits: Tensor, flight: Flight) -> None:
        """Begin the draws; leave their tokens for the next step, and what the host must see in pinned memory."""
        plan, device = flight.plan, self._accelerator
        drawing = sampler.begin(logits, plan.sample_rows, plan.sample_positions, plan.num_candidates)
        tokens = drawing.tokens
        if tokens is None:  # done already: the host has seen them
            samples = drawing.finish(None)
            enter(samples, plan, flight.result)
            tokens = beside(samples.tokens, logits)
        else:
            flight.drawing = drawing
        self._staging.drawn[: len(tokens)].copy_(tokens)
        if flight.drawing is not None and drawing.told is not None:
            flight.told = device.pinned(tuple(drawing.told.shape), drawing.told.dtype)
            device.copy(flight.told, drawing.told)


def _positions(step: StagedStep) -> Tensor:
    assert step.batch.on_device is not None
    return step.batch.on_device.positions
