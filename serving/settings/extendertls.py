"""TLS of the scheduler extender: its certificate, and who may call."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from serving.settings.knob import DURATION, TEXT, Knob
from serving.settings.record import Clash


class ExtenderTlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All knobs of the extender's TLS. Times are in seconds."""

    certificate_file: Annotated[str, Knob(key="certificate-file", unit=TEXT)] = ""
    """Path of the certificate (PEM) with the chain behind it. Empty means plain HTTP. Default: ours, empty."""

    key_file: Annotated[str, Knob(key="key-file", unit=TEXT)] = ""
    """Path of the certificate's key (PEM). Default: ours, empty."""

    client_ca_file: Annotated[str, Knob(key="client-ca-file", unit=TEXT)] = ""
    """Path of the certificates (PEM) that a caller's own must be signed by. Empty asks callers for none. Default: ours,
    empty."""

    reload_period_s: Annotated[float, Knob(key="reload-period", unit=DURATION, low=0.05, high=86400)] = 10.0
    """Time between two looks at the files, in seconds; what has changed is served to the next connection. Range: 50ms to
    24h. Default: ours, 10s."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are read; none without TLS."""
        return tuple(filter(None, (self.certificate_file, self.key_file, self.client_ca_file)))

    def check(self) -> Iterator[Clash]:
        """Files that are right together only."""
        if bool(self.certificate_file) is not bool(self.key_file):
            fields = ("tls.certificate_file", "tls.key_file")
            yield Clash(fields=fields, what="one is set without the other", expected="both, or none")
        elif self.client_ca_file and not self.certificate_file:
            fields = ("tls.client_ca_file", "tls.certificate_file")
            yield Clash(
                fields=fields, what="callers cannot be verified without TLS", expected="a certificate and its key"
            )
