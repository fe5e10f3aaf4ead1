"""TLS at the activator: its sources of certificates, the default certificate, and the reload period.

The listener exists if there is at least one source of certificates: files, a folder, or Secrets.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from serving.core.settings.knob import COUNT, DURATION, TEXT, Clash, Knob


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of TLS. Times are in seconds; lists are separated by commas."""

    address: Annotated[str, Knob(key="address", unit=TEXT)] = "127.0.0.1:8443"
    """Address and port of the listener for TLS. Default: ours, loopback only."""

    certificate_files: Annotated[str, Knob(key="certificate-files", unit=TEXT)] = ""
    """Paths of PEM files, separated by commas. Each file has a certificate and its chain. A certificate's name is its
    path. Default: ours, none.
    """

    key_files: Annotated[str, Knob(key="key-files", unit=TEXT)] = ""
    """Paths of the keys of certificate-files, in the same order. Default: ours, none."""

    folder: Annotated[str, Knob(key="folder", unit=TEXT)] = ""
    """A folder of certificates: NAME.crt or NAME.pem with NAME.key, or a folder NAME with tls.crt and tls.key, or with
    fullchain.pem and privkey.pem. Default: ours, none."""

    secrets: Annotated[str, Knob(key="secrets", unit=TEXT)] = ""
    """Names of Secrets of type kubernetes.io/tls in the system's namespace, separated by commas. The activator needs
    the right to get each Secret. Default: ours, none.
    """

    default_certificate: Annotated[str, Knob(key="default-certificate", unit=TEXT)] = ""
    """Name of the certificate for clients that send no server name, or a server name without a certificate. If empty,
    the handshake of these clients fails with the alert unrecognized_name. Default: ours, empty.
    """

    reload_period_s: Annotated[float, Knob(key="reload-period", unit=DURATION, low=0.05, high=86400)] = 10.0
    """Time between two checks of files and Secrets, in seconds; changes apply to the next handshake.
    Range: 50ms to 24h. Default: ours, 10s."""

    handshake_max_s: float = 10.0
    """Longest time from the connection to the end of the handshake; then it is closed. Source: ours, 10s, as for a
    request's head; asyncio has 60s."""

    public_port: Annotated[int, Knob(key="public-port", unit=COUNT, low=0, high=65535)] = 0
    """Public port of the TLS listener, used in redirects to https. 0 means the port of the listener itself. Range: 0 to
    65535. Default: ours, 0; behind a Service or a router 443 is usual.
    """

    @property
    def is_on(self) -> bool:
        """Whether any source of certificates is set."""
        return bool(self.certificate_files or self.folder or self.secrets)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The path of each certificate, with the path of its key."""
        return list(zip(_listed(self.certificate_files), _listed(self.key_files), strict=True))

    @property
    def secret_names(self) -> list[str]:
        """Names of the Secrets."""
        return _listed(self.secrets)

    def check(self) -> Iterator[Clash]:
        """Yield all contradictions between fields."""
        certificates, keys = len(_listed(self.certificate_files)), len(_listed(self.key_files))
        if certificates != keys:
            yield Clash(
                fields=("tls.key_files", "tls.certificate_files"),
                what=f"{keys} keys for {certificates} certificates",
                expected="one key for each certificate, in the same order",
            )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
