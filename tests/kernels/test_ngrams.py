"""The index of n-grams says what a search of the whole text says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.kernels.ngrams import NgramIndex, naive_continuation


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4), st.integers(0, 3), st.integers(1, 6))
def test_the_index_finds_what_a_search_finds(text, shortest, more, count):
    index = NgramIndex(shortest + more, shortest)
    for end, token in enumerate(text, start=1):
        index.extend([token])
        expected = naive_continuation(text[:end], shortest + more, shortest, count)
        assert index.continuation(count) == expected
        assert index.matched == bool(expected)
        assert len(expected) in (0, count)


def test_the_longest_match_wins_and_of_equal_ones_the_latest():
    index = NgramIndex(3, 2)
    index.extend([1, 2, 3, 7, 2, 3, 8, 9, 2, 3, 5, 1, 2, 3])
    assert index.continuation(2) == [7, 2]  # 1 2 3 occurred once; 2 3 alone came later, before 5
    index = NgramIndex(2, 2)
    index.extend([1, 2, 3, 7, 2, 3, 8, 9, 2, 3])
    assert index.continuation(2) == [8, 9]


def test_a_text_that_repeats_is_continued_past_its_end():
    index = NgramIndex(4, 2)
    index.extend([5, 6, 7] * 3)
    assert index.continuation(7) == [5, 6, 7, 5, 6, 7, 5]
    index.extend([0])
    assert not index.matched
    assert index.continuation(3) == []
