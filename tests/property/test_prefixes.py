"""Pod choice by prompt prefix: memory and load are bounded, and only listed pods with room are chosen."""

from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.prefixes import (
    BLOCK_ENDS,
    LOAD_RATIO_MAX,
    PrefixTable,
    Prompt,
    lone_ratio_max,
    read_prompt,
)

BLOCKS_MAX = 40
PODS = st.frozensets(st.sampled_from("abcdef"), min_size=1)
# Prompts of a few families, some with a common prefix.
PROMPTS = st.builds(
    lambda family, shared, length, tokens: Prompt(
        prefixes=tuple(min(place, shared) + 1000 * (family if place >= shared else 0) for place in range(length)),
        tokens=tokens,
    ),
    st.integers(1, 4),
    st.integers(0, 8),
    st.integers(0, len(BLOCK_ENDS)),
    st.integers(1, 100_000),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), PROMPTS, PODS),
        st.tuples(st.just("end"), st.integers(0, 50), st.none()),
        st.tuples(st.just("pods"), st.none(), PODS),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_prefix_memory_and_load_are_bounded_and_only_free_pods_chosen(
    steps: list[tuple[str, Prompt | int | None, frozenset[str] | None]],
) -> None:
    table = PrefixTable[int](BLOCKS_MAX)
    listed: frozenset[str] = frozenset("abc")
    table.set_pods(listed)
    running: list[int] = []
    for number, (call, value, pods) in enumerate(steps):
        if call == "pods" and pods is not None:
            listed = pods
            table.set_pods(listed)
        elif call == "end" and isinstance(value, int) and running:
            table.end(running.pop(value % len(running)))
        elif isinstance(value, Prompt) and pods is not None and listed & pods:
            free = sorted(listed & pods)
            address = table.choose(value, free)
            assert address in free
            counts = [table._pods[name].known_count(value.prefixes) for name in listed]
            near_count = sum(
                count > 0 and 4 * BLOCK_ENDS[count - 1] >= BLOCK_ENDS[len(value.prefixes) - 1] for count in counts
            )
            ratio_max = LOAD_RATIO_MAX if near_count > 1 else lone_ratio_max(len(listed))
            tokens = {name: table._pods[name].tokens for name in listed}
            mean = (sum(tokens.values()) + value.tokens) / len(listed)
            is_least = tokens[address] == min(tokens[name] for name in free)
            assert is_least or (value.prefixes and tokens[address] <= ratio_max * mean)
            table.begin(number, value, address)
            running.append(number)
        assert table._pods.keys() == listed
        assert sum(len(pod.known) for pod in table._pods.values()) <= BLOCKS_MAX
        assert all(pod.tokens >= 0 for pod in table._pods.values())
    for request in running:
        table.end(request)
    assert not table._running
    assert not any(pod.tokens for pod in table._pods.values())


@given(body=st.binary(max_size=3000), start=st.sampled_from([b"", b'{"messages": ', b'{"prompt":"']))
def test_partial_prompt_body_has_a_prefix_of_the_blocks(body: bytes, start: bytes) -> None:
    raw = start + body
    whole = read_prompt(b"/", raw, length=len(raw), secret=b"s")
    part = read_prompt(b"/", raw[: len(raw) // 2], length=len(raw), secret=b"s")
    assert whole.prefixes[: len(part.prefixes)] == part.prefixes
    assert whole.tokens >= 1
