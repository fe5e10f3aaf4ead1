"""Limits how often one address may present a wrong token.

A correct token is never counted, and is always accepted, because all clients behind a proxy or NAT share one address.
The bound makes guesses visible and cheap to refuse. The length of a token makes guessing impossible. Pure.
"""

from collections import OrderedDict

import msgspec

from serving.core.traffic.clients import network_of

COUNT_MAX = 30
"""Wrong tokens of one address that get the usual error in a period: kubectl with an old token sends five per call."""

PERIOD_S = 60.0
# Most addresses remembered.
_ADDRESSES_MAX = 1000


class WrongToken(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a wrong token: seconds until the address may try again; 0 while it is within the limit.

    ``is_news``: the token is the first above the limit in its period, which is worth a log line.
    """

    wait_s: float
    is_news: bool


class WrongTokens:
    """Counts the wrong tokens of each address. All IPv6 addresses of a /64 count as one."""

    def __init__(self) -> None:
        self._counted: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def record(self, address: str, now_s: float) -> WrongToken:
        """Count a wrong token of an address."""
        key = network_of(address)
        since_s, count = self._counted.get(key, (now_s, 0))
        # The clock may have been set back.
        if not 0 <= now_s - since_s < PERIOD_S:
            since_s, count = now_s, 0
        count += 1
        self._counted[key] = (since_s, count)
        self._counted.move_to_end(key)
        if len(self._counted) > _ADDRESSES_MAX:
            self._counted.popitem(last=False)
        wait_s = 0.0 if count <= COUNT_MAX else since_s + PERIOD_S - now_s
        return WrongToken(wait_s=wait_s, is_news=count == COUNT_MAX + 1)
