"""The processor masks rows together as it masks one, follows its own branch, refuses what the grammar refuses (T03)."""

from __future__ import annotations

import pytest
import torch

from paged_core.structured.processor import GrammarProcessor
from paged_core.structured.spec import GrammarError, GrammarSpec


@pytest.fixture
def template(backends):
    spec = GrammarSpec("xgrammar", "regex", "[a-c]{2,3}", False)
    return GrammarProcessor(backends["xgrammar"].load(spec, backends["xgrammar"].compile(spec)))


def masked(processor, size=333):
    logits = torch.zeros(size)
    processor.apply(logits)
    return [token for token in range(size) if logits[token] == 0]


def test_rows_together_equal_rows_alone_and_others_are_untouched(template):
    forks = [template.fork() for _ in range(3)]
    forks[1].accept([97, 98])
    forks[2].accept([97, 98, 99])
    logits = torch.randn(5, 333)
    alone = logits.clone()
    for fork, row in zip(forks, (4, 0, 2), strict=True):
        fork.apply(alone[row])
    together = logits.clone()
    GrammarProcessor.apply_rows(forks, together, [4, 0, 2])
    assert torch.equal(together, alone)
    assert torch.equal(together[[1, 3]], logits[[1, 3]])
    assert [torch.isfinite(together[row]).sum().item() for row in (4, 0, 2)] == [3, 4, 1]


def test_a_fork_begins_anew_and_a_restart_replays_the_output(template):
    branch = template.fork()
    branch.accept([97])
    branch.accept([98])
    restarted = branch.fork()
    assert masked(restarted) == masked(template) == [97, 98, 99]
    restarted.accept([97, 98])
    assert masked(restarted) == masked(branch) == [97, 98, 99, 256]


def test_t03_a_rejected_token_raises_and_says_which(template):
    branch = template.fork()
    branch.accept([97, 98])
    with pytest.raises(GrammarError, match="token 120 as number 3"):
        branch.accept([120])


def test_nothing_follows_the_end(template):
    branch = template.fork()
    branch.accept([97, 98, 256])
    with pytest.raises(GrammarError, match="number 4"):
        branch.accept([97])
