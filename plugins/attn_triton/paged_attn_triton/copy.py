"""copy_kernel: blocks are copied within every layer's cache, or from one set of caches to another, in one launch."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_kernel(
    # int64 addresses of the layers' caches, and int64 pairs (source block, target block)
    sources_ptr, targets_ptr, pairs_ptr,
    WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid (pairs, layers, ceil(WORDS / CHUNK)); a block is WORDS int32, contiguous."""
    pair, layer, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    source = tl.load(pairs_ptr + 2 * pair)
    target = tl.load(pairs_ptr + 2 * pair + 1)
    words = chunk * CHUNK + tl.arange(0, CHUNK)
    # caches are aligned to 16 bytes, and blocks are a multiple of that
    read_ptr = tl.multiple_of(tl.load(sources_ptr + layer).to(tl.pointer_type(tl.int32)), 16)
    write_ptr = tl.multiple_of(tl.load(targets_ptr + layer).to(tl.pointer_type(tl.int32)), 16)
    data = tl.load(read_ptr + source * WORDS + words, mask=words < WORDS)
    tl.store(write_ptr + target * WORDS + words, data, mask=words < WORDS)
