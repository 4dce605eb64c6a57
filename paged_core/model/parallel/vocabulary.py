"""SharedVocabulary: embedding and logits where every rank has the rows of some tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from paged_core.model.parallel.shard import Shard, vocabulary_range

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.model import ModelSpec
    from paged_core.model.parallel.collective import Collective


class SharedVocabulary:
    """Used in the same order by all ranks."""

    def __init__(self, spec: ModelSpec, collective: Collective) -> None:
        """`spec`: of the whole model."""
        self.collective = collective
        self._num_tokens = spec.vocab_size
        self._own = vocabulary_range(spec, Shard(collective.rank, collective.size))

    @property
    def width(self) -> int:
        """Columns of `logits` on this rank."""
        return self._num_tokens if self.collective.rank == 0 else -(-self._num_tokens // self.collective.size)

    def embedding(self, token_ids: Tensor, rows: Tensor) -> Tensor:
        """[tokens, width] of all tokens, from each rank's `rows`. Exact: the other ranks add zeros."""
        place = token_ids - self._own.start
        is_elsewhere = (place < 0) | (place >= len(self._own))
        x = functional.embedding(place.masked_fill_(is_elsewhere, 0), rows)
        return self.collective.all_reduce(x.masked_fill_(is_elsewhere[:, None], 0))

    def logits(self, local: Tensor, out: Tensor | None) -> Tensor:
        """Rank 0: logits of the whole vocabulary [rows, vocab], in `out` if it is given. Others: `local` as it came."""
        gathered = self.collective.gather_logits(local)
        if gathered is None:
            return local
        whole = gathered[:, : self._num_tokens]  # behind it lies padding
        return whole.contiguous() if out is None else out.copy_(whole)
