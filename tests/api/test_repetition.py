"""RepetitionDetectionParams: what counts as a loop, against the definition spelled out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api.params import SamplingParams
from paged_core.api.repetition import RepetitionDetectionParams
from paged_core.errors import RequestError


def plain(output, params):
    """Some pattern of an allowed size makes up the end of `output`, min_count times."""
    count = params.min_count
    return any(
        len(output) >= size * count and output[-size * count :] == output[-size:] * count
        for size in range(max(1, params.min_pattern_size), params.max_pattern_size + 1)
    )


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 9), st.integers(0, 9), st.integers(2, 5))
def test_a_loop_is_found_exactly_where_the_definition_has_one(output, longest, shortest, count):
    params = RepetitionDetectionParams(max(longest, shortest), shortest, count)
    assert params.found_in(np.array(output, dtype=np.int32)) == plain(output, params)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_loop_is_found_with_its_last_token_and_not_before(size):
    params = RepetitionDetectionParams(max_pattern_size=7, min_count=3)
    output = np.array([50, 51, *list(range(size)) * 3], dtype=np.int32)
    assert [params.found_in(output[:length]) for length in range(len(output) + 1)] == [False] * len(output) + [True]


def test_sizes_out_of_range_and_unknown_fields_are_refused():
    for values in (
        {"max_pattern_size": -1},
        {"max_pattern_size": 1025, "min_count": 2},
        {"max_pattern_size": 4},
        {"max_pattern_size": 4, "min_count": 1},
        {"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2},
        {"max_pattern_size": True, "min_count": 2},
        {"max_pattern_size": "4", "min_count": 2},
        {"size": 4},
        [4, 1, 2],
        4,
        "4",
    ):
        with pytest.raises(RequestError, match="repetition_detection") as caught:
            SamplingParams(repetition_detection=values)
        assert caught.value.field == "repetition_detection"


def test_an_object_of_json_is_as_good_and_a_size_of_zero_is_off():
    values = {"max_pattern_size": 4, "min_count": 2}
    params = SamplingParams.from_mapping({"repetition_detection": values})
    assert params.repetition_detection == RepetitionDetectionParams(4, 0, 2)
    assert SamplingParams(repetition_detection=RepetitionDetectionParams()).repetition_detection is None
    assert SamplingParams(repetition_detection={}).repetition_detection is None
