"""Prints digest-like values that an allocator holds after one published prompt: `python -m ... NAME SEED [MODULE]`.

Hash keys are no part of the contract, yet law 14 promises that they differ from process to process. So this walks
everything that the allocator references and collects what looks like a digest, whatever it is called: long byte and
hex strings, and integers too wide to be an address. What merely repeats the prompt's tokens is left out.
"""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

from paged_core.api.allocator import Allocator, AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.request import Request, Rows, Sequence
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

BLOCK_SIZE = 16
NUM_TOKENS = 33
MIN_DIGEST_BYTES = 8
ADDRESS_BITS = 57


def main(name: str, seed: str, modules: list[str]) -> None:
    """Publish one prompt and print the digests, one a line."""
    plugins = bootstrap(Settings.load(plugin_modules=tuple(modules)))
    need = AllocatorNeed(8, 0, BLOCK_SIZE, 2, 64, True, None if seed == "none" else int(seed))
    allocator: Allocator = plugins.create("alloc", name, need)
    rows = Rows(2, 64)
    prompt = tuple(range(70_000, 70_000 + NUM_TOKENS))
    seq = Sequence(Request("r", prompt, SamplingParams(), 0.0, cache_salt="salt", adapter="adapter"))
    seq.bind(rows, 0)
    tokens = seq.token_ids.tobytes()
    allocator.open(seq)
    allocator.grow(seq, NUM_TOKENS)
    rows.num_computed[0] = NUM_TOKENS
    allocator.publish(seq)
    print("\n".join(sorted(digests(allocator, tokens))))


def digests(root: object, tokens: bytes) -> set[str]:
    """Digest-like values reachable from `root`, without what is a slice of `tokens`."""
    found, seen, queue = set(), {id(root)}, [root]
    while queue:
        value = queue.pop()
        if (digest := _as_digest(value)) is not None and bytes(tokens).find(digest) < 0:
            found.add(digest.hex())
        for child in _referents(value):
            if id(child) not in seen and not isinstance(child, (type, ModuleType, FunctionType)):
                seen.add(id(child))
                queue.append(child)
    return found


def _as_digest(value: object) -> bytes | None:
    if isinstance(value, bytes) and len(value) >= MIN_DIGEST_BYTES:
        return value
    if isinstance(value, int) and value.bit_length() > ADDRESS_BITS:
        return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if isinstance(value, str) and len(value) >= 2 * MIN_DIGEST_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            return None
    return None


def _referents(value: Any) -> list[object]:
    children = gc.get_referents(value)
    return [*children, *value.__dict__.values()] if hasattr(value, "__dict__") else children


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
