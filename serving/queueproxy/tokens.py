"""Counts tokens in flight at a model server.

Input: the tokens of each request (``serving/core/traffic/prompttokens.py``), the progress of its response, and its end.
Output: the mean number of tokens in flight over a period. The tokens of a prompt count until the response ends. The
tokens that a request may generate count until they have been streamed. A response that is not streamed counts fully
until its end.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from serving.core.traffic.prompttokens import RequestTokens

RequestId = TypeVar("RequestId", bound=Hashable)

EVENT_BYTES = 200
"""Bytes of a streamed token: an event with an object in OpenAI's form, as vLLM sends it."""


class TokenMeter(Generic[RequestId]):
    """The time-weighted mean number of tokens in flight. ``report`` closes a period and opens the next.

    ``sent_bytes_of`` returns the length of a request's response so far. Only ``report`` reads the length, so tokens
    decrease in steps.
    """

    __slots__ = ("_at_s", "_integral", "_left", "_level", "_requests", "_sent_bytes_of", "_since_s")

    def __init__(self, now_s: float, *, sent_bytes_of: Callable[[RequestId], int]) -> None:
        self._sent_bytes_of = sent_bytes_of
        self._requests: dict[RequestId, RequestTokens] = {}
        self._left: dict[RequestId, int] = {}
        self._level = 0
        self._integral = 0.0
        self._at_s = self._since_s = now_s

    def arrive(self, request: RequestId, tokens: RequestTokens, now_s: float) -> None:
        """Count a started request."""
        self._pass(now_s)
        if tokens.total:
            self._requests[request] = tokens
            self._left[request] = tokens.total
            self._level += tokens.total

    def exit(self, request: RequestId, now_s: float) -> None:
        """Remove an ended request; an unknown request changes nothing."""
        self._pass(now_s)
        self._requests.pop(request, None)
        self._level -= self._left.pop(request, 0)

    def report(self, now_s: float) -> float:
        """The mean since the last report. Example: 1,000 tokens for half of a second give 500."""
        self._pass(now_s)
        period_s = self._at_s - self._since_s
        mean = self._integral / period_s if period_s else float(self._level)
        self._integral = 0.0
        self._since_s = self._at_s
        self._release()
        return mean

    def _release(self) -> None:
        """Stop counting tokens that have been streamed."""
        for request, tokens in self._requests.items():
            answer = max(0, tokens.answer - self._sent_bytes_of(request) // EVENT_BYTES)
            self._left[request] = tokens.prompt + answer
        self._level = sum(self._left.values())

    def _pass(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._integral += self._level * (now_s - self._at_s)
            self._at_s = now_s
