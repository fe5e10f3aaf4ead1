"""Counts tokens in flight at a model server.

Input: the tokens of each request (``serving/core/traffic/prompttokens.py``), and the end of its response. Output: the mean number of
tokens in flight over a period. A request counts the tokens of its prompt and those that it may generate, until its response ends.
"""

from collections.abc import Hashable


class TokenMeter:
    """The mean number of tokens in flight, weighted by time; ``report`` closes a period and opens the next."""

    __slots__ = ("_at_s", "_integral", "_level", "_requests", "_since_s")

    def __init__(self, now_s: float) -> None:
        self._requests: dict[Hashable, int] = {}
        self._level = 0
        self._integral = 0.0
        self._at_s = self._since_s = now_s

    def arrive(self, request: Hashable, tokens: int, now_s: float) -> None:
        """Count a started request."""
        self._pass(now_s)
        if tokens:
            self._requests[request] = tokens
            self._level += tokens

    def exit(self, request: Hashable, now_s: float) -> None:
        """Stop counting a request; an unknown one has no effect."""
        self._pass(now_s)
        self._level -= self._requests.pop(request, 0)

    def report(self, now_s: float) -> float:
        """The mean since the last report. 1,000 tokens during half of a second: 500."""
        self._pass(now_s)
        period_s = self._at_s - self._since_s
        mean = self._integral / period_s if period_s else float(self._level)
        self._integral = 0.0
        self._since_s = self._at_s
        return mean

    def _pass(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._integral += self._level * (now_s - self._at_s)
            self._at_s = now_s
