"""Which certificate a client gets, by the server name that it asks for (SNI, RFC 6066, section 3).

Input: the hosts of each certificate, as its SANs have them, and the name of the default one. Output: one certificate or
none. An exact host comes before a wildcard, which stands for one label ("*.default.localhost" is hello.default.localhost
and not a.b.default.localhost). Where several certificates have a host, the one that is valid longest is taken, so that an
old one need not be removed before the new one is there. It knows nothing of keys and files.
"""

from collections.abc import Iterable

import msgspec


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a certificate is for. ``name`` is ours for it; ``not_after_s`` is its end, in seconds since 1970."""

    name: str
    hosts: tuple[str, ...]
    not_after_s: float


class CertificateChoice:
    """All certificates by host. ``default`` is the one for clients whose server name matches none, or that send none."""

    __slots__ = ("_default", "_exact", "_wildcards")

    def __init__(self, identities: Iterable[Identity], *, default: str = "") -> None:
        self._exact: dict[str, str] = {}
        self._wildcards: dict[str, str] = {}
        self._default: str | None = None
        # The last one written wins: that which is valid longest, and of two like that the first by name.
        known = sorted(identities, key=lambda identity: identity.name, reverse=True)
        for identity in sorted(known, key=lambda identity: identity.not_after_s):
            if identity.name == default:
                self._default = default
            for host in identity.hosts:
                plain = _plain(host)
                if plain.startswith("*."):
                    self._wildcards[plain[2:]] = identity.name
                else:
                    self._exact[plain] = identity.name

    def __repr__(self) -> str:
        return f"CertificateChoice({len(self._exact)} hosts, {len(self._wildcards)} wildcards, default {self._default})"

    def find(self, server_name: str | None) -> str | None:
        """The certificate's name for a server name; None: no certificate, and the handshake must fail.

        With hosts "a.example" of one and "*.example" of two, "A.example." is one, "b.example" two, "c.b.example" neither.
        """
        if server_name:
            plain = _plain(server_name)
            _, _, parent = plain.partition(".")
            found = self._exact.get(plain) or self._wildcards.get(parent)
            if found is not None:
                return found
        return self._default


def _plain(host: str) -> str:
    return host.removesuffix(".").lower()
