"""The pod of a prompt."""

import json
from collections import Counter

import pytest

from serving.core.traffic.prefixes import BLOCK_ENDS, PrefixMatch, PrefixTable, Prompt, read_prompt

CHAT = b"/v1/chat/completions"
SECRET = b"secret"
LONG, OTHER = tuple(range(8)), tuple(range(100, 108))


def prompt_of(body: object, *, secret: bytes = SECRET) -> Prompt:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_prompt(CHAT, raw, length=len(raw), secret=secret)


def chat(*texts: str, **fields: object) -> dict[str, object]:
    return {**fields, "messages": [{"role": "user", "content": text} for text in texts]}


def table(*pods: str, blocks_max: int = 1000) -> PrefixTable[str]:
    prefixes = PrefixTable[str](blocks_max)
    prefixes.set_pods(pods)
    return prefixes


def send(prefixes: PrefixTable[str], request: str, prompt: Prompt, *free: str) -> str:
    """Choose a pod and begin; "pod 3/8" means that the pod had 3 of 8 blocks."""
    address = prefixes.choose(prompt, free)
    match = prefixes.begin(request, prompt, address)
    return f"{address} {match.known_count}/{match.block_count}"


def prompt(prefixes: tuple[int, ...] = LONG, tokens: int = 100) -> Prompt:
    return Prompt(prefixes=prefixes, tokens=tokens)


def test_cached_tokens_count_as_a_quarter_in_load() -> None:
    prefixes = table("a", "b")
    long = prompt(tokens=1100)
    assert send(prefixes, "first", long, "a") == "a 0/8"
    prefixes.end("first")
    # 8 blocks are 4,096 bytes, or 1,024 tokens: 76 remain, and a quarter is 256.
    assert send(prefixes, "second", long, "a", "b") == "a 8/8"
    assert send(prefixes, "other", prompt(OTHER, tokens=333), "b") == "b 0/8"
    assert prefixes.choose(prompt(()), ["a", "b"]) == "a"


def test_requests_with_same_prompt_are_spread_over_all_pods() -> None:
    prefixes, pods = table(*"abcd"), Counter[str]()
    for number in range(40):
        pods[send(prefixes, f"request-{number}", prompt(tokens=1100), *"abcd")[0]] += 1
    assert max(pods.values()) <= 12


def test_longer_conversation_begins_with_blocks_of_shorter_one() -> None:
    first, second = prompt_of(chat("a" * 3000)), prompt_of(chat("a" * 3000, "b" * 3000, model="m"))
    assert (len(first.prefixes), len(second.prefixes)) == (6, 8)
    assert second.prefixes[:6] == first.prefixes
    assert second.tokens > first.tokens > 750
    assert prompt_of({"prompt": "a" * 3000}).prefixes != first.prefixes


def test_hashes_depend_on_secret_and_on_preceding_text() -> None:
    body = chat("a" * 3000)
    assert not set(prompt_of(body).prefixes) & set(prompt_of(body, secret=b"other").prefixes)
    assert not set(prompt_of(body).prefixes) & set(prompt_of(chat("b" + "a" * 3000)).prefixes)


def test_long_prompt_is_hashed_by_its_beginning() -> None:
    assert len(prompt_of(chat("a" * 200_000)).prefixes) == len(BLOCK_ENDS)
    raw = json.dumps(chat("a" * 200_000)).encode()
    part = read_prompt(CHAT, raw[:5000], length=len(raw), secret=SECRET)
    assert part.prefixes == prompt_of(raw).prefixes[:8]
    assert part.tokens > 50_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"\x1f\x8b\x08\x00" + bytes(range(256)) * 20,
        b'{"messages": ' + b"[" * 100,
        b'{"model": "' + b"m" * 5000,
        chat("short"),
        # In a text the key's quotes are escaped, so it begins no prompt.
        {"model": '"messages": ' + "m" * 5000},
    ],
)
def test_body_without_complete_prompt_block_has_no_prefixes(body: object) -> None:
    assert prompt_of(body).prefixes == ()
    assert prompt_of(body).tokens >= 1


def test_deeply_nested_json_is_hashed_unparsed() -> None:
    deep = prompt_of(b'{"messages": ' + b"[" * 60_000)
    assert (len(deep.prefixes), deep.tokens) == (15, 1)


def test_prompt_is_routed_to_pod_with_its_prefixes_or_least_loaded_free_pod() -> None:
    prefixes = table("p", "q", "r")
    for number in range(4):
        # Load on all pods, so that the load bound is not reached.
        prefixes.begin(f"old {number}", prompt((), 1000), "pqr"[number % 3])
    prefixes.end("old 3")
    assert send(prefixes, "a", prompt(), *"pqr") == "p 0/8"
    assert send(prefixes, "b", prompt(OTHER), *"pqr") == "r 0/8"
    assert send(prefixes, "c", prompt(), *"pqr") == "p 8/8"
    assert send(prefixes, "d", prompt(), *"qr") == "q 0/8"
    assert send(prefixes, "e", prompt(()), *"pqr") == "q 0/0"


def test_independent_activators_choose_same_pods() -> None:
    one_table, other_table, pods = table(*"pqrs"), table(*"pqrs"), Counter[str]()
    for number in range(80):
        # All begin with the same instructions.
        turn = (*LONG[:1], *range(1000 * number + 1000, 1000 * number + 1004))
        one_table.begin(f"{number}", prompt(turn), address := one_table.choose(prompt(turn), "pqrs"))
        one_table.end(f"{number}")
        longer = (*turn, *range(1000 * number + 2004, 1000 * number + 2007))
        assert send(other_table, f"{number}", prompt(longer), *"pqrs")[0] == address
        other_table.end(f"{number}")
        pods[address] += 1
    assert min(pods.values()) >= 10


def test_unknown_prompt_is_not_routed_to_pod_beyond_load_bound() -> None:
    prefixes = table("p", "q", "r")
    prefixes.begin("busy", prompt((), 1000), "p")
    # The pod of this prompt is p. The mean is (1000 + tokens) / 3, and the bound 5/3 of that.
    assert prefixes.choose(prompt(tokens=800), "pqr") == "p"
    assert prefixes.choose(prompt(tokens=799), "pqr") == "q"
    assert prefixes.choose(prompt(tokens=799), "p") == "p"


def test_idle_pod_with_prefixes_is_preferred_to_other_idle_pods() -> None:
    prefixes = table("p", "q")
    assert [send(prefixes, name, prompt(blocks), "p", "q") for name, blocks in (("a", LONG), ("b", OTHER))] == [
        "p 0/8",
        "q 0/8",
    ]
    prefixes.end("a")
    prefixes.end("b")
    assert send(prefixes, "c", prompt(OTHER), "p", "q") == "q 8/8"


def test_pod_beyond_load_bound_is_not_chosen_for_its_prefixes() -> None:
    prefixes = table("p", "q")
    assert send(prefixes, "a", prompt(tokens=1000), "p", "q") == "p 0/8"
    # 768 of the tokens are saved. With 334 more the mean is 667, and 1,000 is 1.5 times as much; with 333 more it is above.
    assert prefixes.choose(prompt(tokens=1102), "pq") == "p"
    assert prefixes.choose(prompt(tokens=1101), "pq") == "q"
    # When q also has a part of the prompt, the bound is 1.25 times the mean.
    prefixes.begin("part", prompt(LONG[:5]), "q")
    prefixes.end("part")
    assert prefixes.choose(prompt(tokens=1368), "pq") == "p"
    assert prefixes.choose(prompt(tokens=1268), "pq") == "q"


def test_shared_instructions_do_not_route_all_prompts_to_one_pod() -> None:
    prefixes = table("p", "q")
    for name in "pq":
        prefixes.begin(f"busy {name}", prompt((), 10_000), name)
    assert send(prefixes, "a", prompt(), "p", "q") == "p 0/8"
    pods = Counter[str]()
    for number in range(40):
        unlike = tuple(range(1000 * number + 1000, 1000 * number + 1005))
        pods[send(prefixes, f"{number}", prompt((*LONG[:3], *unlike)), "p", "q")[0]] += 1
    assert min(pods.values()) >= 10
    assert send(prefixes, "d", prompt((*LONG[:5], 300, 301, 302)), "p", "q") == "p 5/8"


def test_idle_pod_with_fewest_blocks_is_chosen_for_unknown_prompt() -> None:
    prefixes = table("p", "q")
    assert send(prefixes, "a", prompt(), "p", "q") == "p 0/8"
    prefixes.end("a")
    assert send(prefixes, "b", prompt(OTHER), "p", "q") == "q 0/8"


def test_least_recently_used_blocks_are_evicted() -> None:
    prefixes = table("p", blocks_max=10)
    prefixes.begin("a", prompt(), "p")
    prefixes.begin("b", prompt(OTHER[:4]), "p")
    assert prefixes.begin("c", prompt(), "p") == PrefixMatch(known_count=6, block_count=8)
    assert "10 blocks, 3 run" in repr(prefixes)
    prefixes.set_pods("pq")
    assert "2 pods, 5 blocks" in repr(prefixes)
    prefixes.set_pods(())
    assert "0 pods, 0 blocks, 3 run" in repr(prefixes)


def test_readded_pod_has_no_prefixes_and_no_load() -> None:
    prefixes = table("p", "q")
    prefixes.begin("a", prompt(), "p")
    prefixes.set_pods("q")
    prefixes.set_pods("pq")
    assert send(prefixes, "b", prompt(), "p", "q") == "p 0/8"
    prefixes.end("a")
    prefixes.end("unknown")
    assert prefixes.choose(prompt(OTHER), "pq") == "q"


def test_heat_of_pod_is_tokens_saved_recently() -> None:
    prefixes = table("p", "q")
    for pod in "pq":
        for number in range(2):
            prefixes.begin(f"{pod}{number}", prompt(LONG if pod == "p" else OTHER), pod)
            prefixes.end(f"{pod}{number}")
    heats = prefixes.heats
    assert heats["q"] == 4096 > heats["p"] > 4000
