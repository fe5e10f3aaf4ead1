"""References in texts, and the bound of what they become."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.home.pods.bytebudget import ByteBudget, expanded


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("plain", "plain"),
        ("$(A)-$(B)", "1-$(A)"),
        ("$(NONE) $(A", "$(NONE) $(A"),
        ("$$(A) $$", "$(A) $"),
        ("$($(A)", "$(1"),
        ("$(x.y-z)", "dotted"),
    ],
)
def test_a_reference_is_expanded_once_and_as_in_kubernetes(word: str, text: str) -> None:
    assert expanded(word, {"A": "1", "B": "$(A)", "x.y-z": "dotted"}, ByteBudget("a test")) == text


def test_what_grows_beyond_the_bound_is_refused_before_it_is_made() -> None:
    budget, value = ByteBudget("the environment of container c"), "x" * 1000
    for _ in range(10):
        value = expanded("$(A)$(A)", {"A": value}, budget) if len(value) < 500_000 else value
    with pytest.raises(InvalidValue, match=r"the environment of container c.*at most 1048576 bytes"):
        expanded("$(A)" * 100_000, {"A": value}, budget)


def test_a_text_of_many_openings_is_read_once() -> None:
    word = "$(" * 200_000
    assert expanded(word, {}, ByteBudget("a test")) == word
