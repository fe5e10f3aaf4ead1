"""Estimates the tokens of OpenAI requests from their bodies.

The body is untrusted. A body that is not in OpenAI's form counts no tokens, and is forwarded unchanged. If only the
beginning of a long body has arrived, its length counts as the prompt.
"""

import re
from collections.abc import Iterable

import msgspec

from serving.core.model.errors import UNREADABLE

BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token, by OpenAI's rule of thumb for English. Other languages and code have fewer."""

OUTPUT_DEFAULT = 256
"""Expected output tokens of a request without a limit: the mean in public chat traces is 211 to 343."""

TOKENS_MAX = 1_000_000
"""Most tokens of one request, so that a wrong number requests no more pods than the longest prompt."""

_GENERATING = (b"/completions", b"/responses", b"/messages")
_LIMIT = re.compile(rb'"max_(?:completion_|output_)?tokens"[ \t\r\n]*:[ \t\r\n]*([0-9]{1,9})[^0-9]')


class RequestTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a request: those of its prompt, and the most that the response may have."""

    prompt: int = 0
    answer: int = 0

    @property
    def total(self) -> int:
        """The tokens of the prompt and of the response together."""
        return self.prompt + self.answer


NO_TOKENS = RequestTokens()
"""The tokens of a request that is not an OpenAI request."""


class _Part(msgspec.Struct):
    """A part of a message. The tokens of images and sounds are not counted."""

    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


_Texts = str | list[int | str | list[int] | _Message]


class _Request(msgspec.Struct):
    """The fields of completions, chats, responses and embeddings from which a request's tokens are estimated."""

    messages: _Texts = ""
    prompt: _Texts = ""
    input: _Texts = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


_DECODER = msgspec.json.Decoder(_Request)


def tokens_of(target: bytes, body: bytes, *, length: int) -> RequestTokens:
    """The estimated tokens of a request, from the first bytes of a body of ``length`` bytes.

    Example: 4,000 bytes of text with ``max_tokens`` 100 have 1,000 and 100 tokens. A prompt of token ids has one token
    per id. A request for ``n`` choices generates n times as many tokens.
    """
    if len(body) < length:
        match = _LIMIT.search(body)
        prompt, limit, count = -(-length // BYTES_PER_TOKEN), None if match is None else int(match[1]), 1
    else:
        try:
            request = _DECODER.decode(body)
        except UNREADABLE:
            return NO_TOKENS
        prompt = sum(_tokens_in(text) for text in (request.messages, request.prompt, request.input))
        limits = (request.max_completion_tokens, request.max_tokens, request.max_output_tokens)
        limit, count = next((limit for limit in limits if limit is not None), None), request.n or 1
    if not prompt:
        return NO_TOKENS
    prompt = min(prompt, TOKENS_MAX)
    if limit is None:
        limit = OUTPUT_DEFAULT if target.partition(b"?")[0].endswith(_GENERATING) else 0
    return RequestTokens(prompt=prompt, answer=min(max(limit, 0) * max(count, 1), TOKENS_MAX - prompt))


def _tokens_in(texts: _Texts) -> int:
    id_count = 0
    byte_count = 0
    for piece in (texts,) if isinstance(texts, str) else texts:
        if isinstance(piece, int):
            id_count += 1
        elif isinstance(piece, list):
            id_count += len(piece)
        else:
            byte_count += sum(len(text.encode()) for text in _pieces(piece))
    return id_count + -(-byte_count // BYTES_PER_TOKEN)


def _pieces(piece: str | _Message) -> Iterable[str]:
    if isinstance(piece, str):
        return (piece,)
    if isinstance(piece.content, list):
        return (part.text or "" for part in piece.content)
    return (piece.content or "",)
