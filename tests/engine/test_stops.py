"""Stop strings: what is found does not depend on how the text was cut, and nothing of a stop is ever shown early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.engine.stops import StopChecker


def stream(pieces, stops, include=False, min_tokens=0):
    """(shown pieces, stop) as the engine drives the checker: a floor of tokens, a flush at the end."""
    checker = StopChecker(stops, include)
    shown = []
    for i, piece in enumerate(pieces):
        text, stop = checker.feed(piece, i + 1 > min_tokens)
        shown.append(text)
        if stop is not None:
            return shown, stop
    return [*shown, checker.flush()], None


def by_find(text, stops, include, floor=0):
    """The definition: of all occurrences that complete beyond `floor` the earliest completed, the longest of equals."""
    found = []
    for stop in stops:
        at = text.find(stop, max(0, floor - len(stop) + 1))
        if at >= 0:
            found.append((at + len(stop), at, stop))
    if not found:
        return text, None
    end, start, stop = min(found)
    return text[: end if include else start], stop


@st.composite
def cut_text(draw):
    """Text over two letters, so that stops overlap with themselves and each other, cut anywhere."""
    text = draw(st.text("ab", max_size=30))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return text, pieces, draw(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4))


@given(cut_text(), st.booleans())
def test_streaming_equals_offline_equals_find(case, include):
    """Museum 34: stops across token borders, windows off by one, tails lost at the end."""
    text, pieces, stops = case
    shown, stop = stream(pieces, stops, include)
    assert ("".join(shown), stop) == by_find(text, stops, include)
    whole, same_stop = stream([text], stops, include)
    assert ("".join(whole), same_stop) == ("".join(shown), stop)


@given(cut_text(), st.integers(0, 6), st.booleans())
def test_a_stop_that_completes_below_the_floor_is_no_stop_then_or_later(case, min_tokens, include):
    text, pieces, stops = case
    shown, stop = stream(pieces, stops, include, min_tokens)
    floor = sum(map(len, pieces[:min_tokens]))
    assert ("".join(shown), stop) == by_find(text, stops, include, floor)


@given(cut_text())
def test_exactly_what_may_still_become_a_stop_is_held_back(case):
    _, pieces, stops = case
    checker = StopChecker(stops, False)
    fed = shown = ""
    for piece in pieces:
        fed += piece
        text, stop = checker.feed(piece)
        if stop is not None:
            return
        shown += text
        begun = [n for s in stops for n in range(len(s)) if fed.endswith(s[:n])]
        assert fed.removeprefix(shown) == fed[len(fed) - max(begun) :]


def test_d01_no_piece_of_a_stop_is_shown_before_the_match_is_decided():
    assert stream(["uvw", "x", "yz"], ["uvwxyz"]) == (["", "", ""], "uvwxyz")
    shown, stop = stream(["uvw", "x", "q"], ["uvwxyz"])
    assert (shown, stop) == (["", "", "uvwxq", ""], None)


def test_d02_text_held_back_at_the_end_is_not_lost():
    assert stream(["ok", "?"], ["\n", "?!"]) == (["ok", "", "?"], None)


@pytest.mark.parametrize("include, text", [(False, "good "), (True, "good <end>")])
def test_d05_text_before_the_stop_is_never_shortened(include, text):
    shown, stop = stream(["good", " <e", "nd> more"], ["<end>"], include)
    assert ("".join(shown), stop) == (text, "<end>")


def test_m14_a_stop_string_before_min_tokens_is_text():
    shown, stop = stream(["a", "\n", "b", "c", "\n", "d"], ["\n"], min_tokens=3)
    assert ("".join(shown), stop) == ("a\nbc", "\n")


def test_m14_a_stop_that_began_below_the_floor_and_completes_above_it_counts():
    shown, stop = stream(["a", "<", "e>"], ["<e>"], min_tokens=2)
    assert ("".join(shown), stop) == ("a", "<e>")


@pytest.mark.parametrize("stops", [["later", "ear"], ["ear", "later"]])
def test_museum_35_the_earliest_completed_stop_wins_not_the_first_of_the_list(stops):
    assert stream(["An earlier word, later."], stops) == (["An "], "ear")


@pytest.mark.parametrize("stops", [["bc", "abc", "c"], ["c", "abc", "bc"]])
def test_museum_35_of_stops_that_complete_together_the_longest_wins(stops):
    assert stream(["xxab", "cd"], stops) == (["xx", ""], "abc")


def test_no_stops_hold_nothing_back():
    assert stream(["a", "", "b"], []) == (["a", "", "b", ""], None)
