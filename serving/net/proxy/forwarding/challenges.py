"""Responds to HTTP-01 challenges of ACME (RFC 8555, 8.3), in front of another handler.

The response to the challenge TOKEN is the file TOKEN of a folder. Without the file the other handler gets the request:
an app may manage its own certificates.
"""

import re
from pathlib import Path

from serving.net.proxy.forwarding.exchange import Exchange, Handler
from serving.net.proxy.forwarding.front import Front

CHALLENGE_PATH = b"/.well-known/acme-challenge/"
"""The prefix of the targets of challenges."""

# Of base64url, so that no other file can be named.
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{1,128}")


class ChallengeResponses(Front):
    """Responds to ACME challenges with the files of a folder."""

    def __init__(self, handler: Handler, folder: Path) -> None:
        super().__init__(handler)
        self._folder = folder

    def respond(self, exchange: Exchange) -> bool:
        """Respond to a challenge whose file exists; return whether there was a response."""
        target = exchange.head.target
        token = target.removeprefix(CHALLENGE_PATH)
        if token == target or not _TOKEN.fullmatch(token):
            return False
        try:
            response = (self._folder / token.decode()).read_bytes()
        except OSError:
            return False
        exchange.respond(200, response)
        return True
