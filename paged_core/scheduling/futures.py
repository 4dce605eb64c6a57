"""What running groups will still need: blocks to the end they announced, slots at the fullest moment to come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_core.api.request import Group


class Future(NamedTuple):
    """What a scheduler expects of one group.

    held       slots it has filled, or will have before its next draw
    remaining  tokens that each of its branches will still be given
    width      branches: slots it fills a step
    """

    held: int
    remaining: int
    width: int = 1


def peak_slots(futures: Iterable[Future]) -> int:
    """Slots that are full at the fullest moment, if all run together from now on and nobody enters.

    The moment can only be one at which somebody ends: with groups by remaining tokens, the longest first, it is
    max over k of sum(held of the first k) + remaining_k * sum(width of the first k), as in LightLLM.
    """
    held = width = peak = 0
    for future in sorted(futures, key=_remaining, reverse=True):
        held += future.held
        width += future.width
        peak = max(peak, held + width * future.remaining)
    return peak


def last_length(group: Group, max_len: int) -> int:
    """Tokens, prompt included, of the longest branch that `group` may end with; the model's limit is `max_len`."""
    limit = group.max_tokens
    return max_len if limit is None else min(max_len, len(group.request.prompt_token_ids) + limit)


def blocks_to_come(group: Group, block_size: int, max_len: int) -> int:
    """Blocks that `group` will take at most beyond those for the tokens it has now.

    Every branch runs to `last_length`, whose last token needs no slot. Branches still to be forked share the full
    blocks of the prompt and copy the last.
    """
    most = -(-(last_length(group, max_len) - 1) // block_size)
    to_come = sum(max(0, most + -seq.num_tokens // block_size) for seq in group.live)
    num_unforked = max(0, group.num_reserved_rows - len(group.sequences))
    return to_come + num_unforked * (most - len(group.request.prompt_token_ids) // block_size)


def slots_held(group: Group) -> int:
    """Slots for the tokens that `group` has now; what branches share counts once."""
    live = group.live
    if len(live) == 1:
        return live[0].num_tokens
    alive = set(live)
    return sum(seq.num_tokens - (seq.divergence if seq.parent in alive else 0) for seq in live)


def _remaining(future: Future) -> int:
    return future.remaining
