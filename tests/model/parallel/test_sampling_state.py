"""Rows that start: parameters, processors and grammars reach the process that samples, what is shared but once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_core.api.batch import RowStart
from paged_core.api.logits import LogitsProcessor
from paged_core.api.params import SamplingParams
from paged_core.errors import RequestError
from paged_core.model.parallel.sampling_state import StateReader, StateWriter, check_travels

NONE = np.zeros(0, dtype=np.int32)


class Heavy:
    """What many processors share."""

    travels_once = True
    made = 0

    def __init__(self, size):
        self.data = bytes(size)

    def __reduce__(self):
        return Heavy.again, (self.data,)

    @classmethod
    def again(cls, data):
        cls.made += 1
        return cls(len(data))


class Biased(LogitsProcessor):
    """Adds to one token."""

    def __init__(self, token, heavy=None):
        self.token, self.heavy = token, heavy

    def apply(self, logits):
        logits[self.token] += 1


class Shy(LogitsProcessor):
    """Goes away, but does not come back."""

    def __reduce__(self):
        return int, ("no number",)

    def apply(self, logits):
        pass


def start(*processors, **params):
    return RowStart(1, SamplingParams(logits_processors=list(processors), **params), 5, 0, NONE, NONE)


def sent(writer, reader, *starts):
    data = writer.write(starts, [])
    return len(data), reader.read(memoryview(data), True)[0]


def test_parameters_and_processors_arrive_and_the_senders_stay_as_they_were():
    mine = start(Biased(3), temperature=0.5, logit_bias={7: 2.0}, bad_words=["a"])
    mine.params.bad_words_token_ids = [[1, 2]]
    _, (theirs,) = sent(StateWriter(), StateReader(), mine)
    (processor,) = theirs.params.logits_processors
    assert (type(processor), processor.token) == (Biased, 3)
    assert theirs.params.logit_bias == {7: 2.0}
    assert theirs.params.bad_words_token_ids == [[1, 2]]
    assert len(mine.params.logits_processors) == 1


def test_what_is_shared_travels_once_and_is_shared_there():
    writer, reader, heavy = StateWriter(), StateReader(), Heavy(100_000)
    Heavy.made = 0
    first, (one, two) = sent(writer, reader, start(Biased(1, heavy)), start(Biased(2, heavy)))
    second, (three,) = sent(writer, reader, start(Biased(3, heavy)))
    assert 100_000 < first < 110_000
    assert second < 5_000
    held = [each.params.logits_processors[0].heavy for each in (one, two, three)]
    assert held[0] is held[1] is held[2]
    assert Heavy.made == 1


def test_what_was_not_used_for_longest_is_sent_again():
    writer, reader = StateWriter(kept_bytes=150_000), StateReader()
    first, second = Heavy(100_000), Heavy(100_000)
    sizes = [
        sent(writer, reader, start(Biased(1, heavy)))[0] for heavy in (first, second, second, first, first, second)
    ]
    assert [size > 100_000 for size in sizes] == [True, True, False, True, False, True]
    assert len(reader._shared) <= 2


def test_what_cannot_be_restored_fails_its_own_draws_with_the_reason():
    _, (broken, sound) = sent(StateWriter(), StateReader(), start(Shy()), start(Biased(1)))
    (processor,) = broken.params.logits_processors
    with pytest.raises(RequestError, match=r"cannot be restored .* ValueError: invalid literal"):
        processor.fork().apply(torch.zeros(4))
    sound.params.logits_processors[0].apply(torch.zeros(4))


def test_a_processor_that_cannot_be_pickled_is_refused_by_name():
    check_travels(SamplingParams(logits_processors=[Biased(1)]))
    check_travels(SamplingParams())
    wrong = Biased(lambda: 3)
    with pytest.raises(RequestError, match=r"Biased cannot be sent .* give it a state that can be pickled") as caught:
        check_travels(SamplingParams(logits_processors=[wrong]))
    assert caught.value.field == "logits_processors"


def test_a_processor_of_the_main_program_is_refused(monkeypatch):
    monkeypatch.setattr(Biased, "__module__", "__main__")
    with pytest.raises(RequestError, match="Biased is defined in the program that was started"):
        check_travels(SamplingParams(logits_processors=[Biased(1)]))


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_grammar_travels_once_with_its_vocabulary_and_masks_the_same(backend):
    pytest.importorskip(backend)
    from paged_core.structured.backends import open_backend
    from paged_core.structured.processor import GrammarProcessor
    from paged_core.structured.spec import GrammarSpec
    from paged_core.structured.vocabulary import vocabulary_of
    from paged_core.testing.tokenizer import ByteTokenizer

    opened = open_backend(backend, vocabulary_of(ByteTokenizer(), 320))
    spec = GrammarSpec(backend, "regex", "[a-c]{3}", compact=False)
    grammar = opened.load(spec, opened.compile(spec))
    writer, reader = StateWriter(), StateReader()
    first, (one,) = sent(writer, reader, start(GrammarProcessor(grammar, jump=True)))
    second, (two,) = sent(writer, reader, start(GrammarProcessor(grammar, jump=True)))
    assert second < first / 2
    for template in (one, two):
        here, there = GrammarProcessor(grammar, jump=True), template.params.logits_processors[0].fork()
        for token in (97, 98):
            logits = torch.zeros(2, 320)
            here.apply(logits[0])
            there.apply(logits[1])
            assert (logits[0] == logits[1]).all()
            assert 0 < int((logits[0] == 0).sum()) < 320
            assert list(here.forced()) == list(there.forced())
            here.accept([token])
            there.accept([token])
