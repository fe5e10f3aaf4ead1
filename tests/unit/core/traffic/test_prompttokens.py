"""Tokens of OpenAI requests and of arbitrary bodies."""

import json

import pytest

from serving.core.traffic.prompttokens import OUTPUT_DEFAULT, TOKENS_MAX, RequestTokens, tokens_of

CHAT = b"/v1/chat/completions"
TEXT = "x" * 4000
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 8000}}


def tokens(body: object, target: bytes = CHAT) -> int:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return tokens_of(target, raw, length=len(raw)).total


@pytest.mark.parametrize(
    ("body", "target", "count"),
    [
        ({"messages": [{"role": "user", "content": TEXT}], "max_tokens": 100}, CHAT, 1100),
        ({"messages": [{"role": "user", "content": TEXT}]}, CHAT, 1000 + OUTPUT_DEFAULT),
        ({"messages": [{"content": [{"type": "text", "text": TEXT}, IMAGE]}], "max_completion_tokens": 5}, CHAT, 1005),
        ({"messages": [{"content": None, "tool_calls": []}, {"content": "ab"}], "max_tokens": 0}, CHAT, 1),
        ({"messages": [{"content": "é" * 4}], "max_tokens": 0}, CHAT, 2),
        ({"prompt": TEXT, "max_tokens": 10, "n": 3}, b"/v1/completions?a=b", 1030),
        ({"prompt": [TEXT, "abcd"], "max_tokens": 0}, b"/v1/completions", 1001),
        ({"prompt": [1, 2, 3], "max_tokens": 0}, b"/v1/completions", 3),
        ({"prompt": [[1, 2], [3]], "max_tokens": 0}, b"/v1/completions", 3),
        ({"input": TEXT, "max_output_tokens": 7}, b"/v1/responses", 1007),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]}, b"/v1/responses", 1256),
        ({"input": [TEXT, TEXT]}, b"/v1/embeddings", 2000),
        ({"prompt": "abcd", "max_tokens": 10**9}, CHAT, TOKENS_MAX),
        ({"prompt": "abcd", "max_tokens": -5, "n": -1}, CHAT, 1),
    ],
)
def test_request_tokens_are_prompt_and_maximum_output(body: object, target: bytes, count: int) -> None:
    assert tokens(body, target) == count


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"[1]",
        b"null",
        b"{}",
        b'{"messages": 5}',
        b'{"messages": [{"content": 5}]}',
        b'{"prompt": "a", "max_tokens": "many"}',
        b'{"prompt": "a", "max_tokens": 1e400}',
        b'{"prompt": "a", "max_tokens": NaN}',
        b'{"prompt": "\xff"}',
        b'{"unknown": ' + b"[" * 60_000,
        b'{"prompt": ' + b"[" * 60_000,
        {"model": "m", "max_tokens": 100},
    ],
)
def test_body_that_is_not_an_openai_request_has_no_tokens(body: object) -> None:
    assert tokens(body) == 0


def test_prompt_and_output_tokens_are_bounded_together() -> None:
    body = json.dumps({"prompt": TEXT, "max_tokens": 10**9}).encode()
    assert tokens_of(CHAT, body, length=len(body)) == RequestTokens(prompt=1000, answer=TOKENS_MAX - 1000)


def test_partial_body_is_counted_by_its_length() -> None:
    for body, length, count in (
        (b'{"max_tokens": 50, "messages": [{"conte', 400_000, 100_050),
        (b'{"messages": [{"conte', 400_000, 100_000 + OUTPUT_DEFAULT),
        (b'{"max_tokens": 50', 400_000, 100_000 + OUTPUT_DEFAULT),
        (b"", 10**15, TOKENS_MAX),
    ):
        assert tokens_of(CHAT, body, length=length).total == count
