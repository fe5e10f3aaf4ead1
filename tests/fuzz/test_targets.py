"""A bounded part of ``make fuzz``: mutated seeds and the whole corpus for each target."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.run import TOKENS, changed
from tests.fuzz.targets import TARGETS, inputs_of

# These write files or open a journal, which takes milliseconds.
SLOW = {"image-layer", "image-archive", "journal", "journal-row", "history", "backup"}
CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 8), st.sampled_from(TOKENS) | st.binary(max_size=4)), max_size=6
)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_corpus_inputs_are_handled(name: str) -> None:
    for data in (b"", *inputs_of(name)):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
@given(st.data())
def test_mutated_inputs_are_accepted_or_rejected(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(inputs_of(name)))
    TARGETS[name].run(changed(seed, data.draw(CHANGES)))


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - SLOW))
@given(st.binary(max_size=64))
@settings(max_examples=30)
def test_arbitrary_bytes_are_accepted_or_rejected(name: str, data: bytes) -> None:
    TARGETS[name].run(data)
