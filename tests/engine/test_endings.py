from __future__ import annotations

import numpy as np
import pytest

from paged_core.api.params import SamplingParams
from paged_core.api.repetition import RepetitionDetectionParams
from paged_core.api.request import Request, Rows, Sequence
from paged_core.engine.endings import Ending, Endings


@pytest.fixture
def made():
    rows = Rows(4, 100)
    return rows, Endings(rows, (256, 2))


def start(made, row, output, **params):
    rows, endings = made
    seq = Sequence(Request(str(row), (1, 2, 3), SamplingParams(**params), 0.0))
    seq.bind(rows, row)
    rows.num_tokens[row] += output
    endings.start(row, seq.request.params)


def check(made, *pairs):
    drawn = np.array([row for row, _ in pairs], dtype=np.int32)
    return made[1].check(drawn, np.array([token for _, token in pairs], dtype=np.int32), made[0].num_tokens[drawn])


def test_eos_stop_ids_and_length_each_end_their_own_row(made):
    start(made, 0, 1)
    start(made, 1, 1, stop_token_ids=[65])
    start(made, 2, 16)
    start(made, 3, 1)
    assert check(made, (0, 2), (1, 65), (2, 7), (3, 65)) == [
        Ending(0, "stop", None),
        Ending(1, "stop", 65),
        Ending(2, "length", None),
    ]


def test_ignore_eos_keeps_user_stop_ids(made):
    start(made, 0, 1, ignore_eos=True, stop_token_ids=[65])
    assert check(made, (0, 256)) == []
    assert check(made, (0, 65)) == [Ending(0, "stop", 65)]


def test_museum_43_the_last_of_min_tokens_may_not_end_the_next_may(made):
    start(made, 0, 3, min_tokens=3)
    assert check(made, (0, 256)) == []
    start(made, 0, 4, min_tokens=3)
    assert check(made, (0, 256)) == [Ending(0, "stop", None)]


def test_a_row_given_to_another_request_forgets_long_stop_lists(made):
    start(made, 0, 1, stop_token_ids=list(range(10, 30)))
    assert check(made, (0, 29)) == [Ending(0, "stop", 29)]
    made[1].end(0)
    start(made, 0, 1)
    assert check(made, (0, 29)) == []


def test_a_loop_ends_its_own_row_after_min_tokens_and_gives_way_to_stop_and_length(made):
    rows = made[0]
    loop = {"repetition_detection": RepetitionDetectionParams(max_pattern_size=4, min_count=3)}
    for row, params in enumerate((loop, loop | {"min_tokens": 6}, loop | {"max_tokens": 6}, {})):
        start(made, row, 6, **params)
        rows.tokens[row, 3:9] = [8, 9] * 3
    assert check(made, (0, 9), (1, 9), (2, 9), (3, 9)) == [
        Ending(0, "repetition", "repetition_detected"),
        Ending(2, "length", None),
    ]
    start(made, 0, 6, stop_token_ids=[9], **loop)
    assert check(made, (0, 9)) == [Ending(0, "stop", 9)]
    start(made, 0, 5, **loop)
    assert check(made, (0, 8)) == [], "8 9 8 9 8 holds no pattern three times"
    start(made, 0, 6)
    assert check(made, (0, 9)) == [], "the row's next request asked for nothing"
