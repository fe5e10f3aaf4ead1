"""TLS on the activator's metrics page: failed handshakes, and the expiry of certificates."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric as Family

from serving.metrics.names import ACTIVATOR_METRICS, named
from serving.metrics.page import MetricsPage, family_of

_FAILED = "serving_tls_handshakes_failed_total"
_EXPIRY = "serving_certificate_expiry_timestamp_seconds"


def add_tls(page: MetricsPage, *, failed: Callable[[], int], expiries: Callable[[], Mapping[str, float]]) -> None:
    """Ask for both each time that the page is made; ``expiries`` are seconds since 1970 by the certificate's name."""

    def pull() -> Iterator[Family]:
        failures, ends = (family_of(named(ACTIVATOR_METRICS, name)) for name in (_FAILED, _EXPIRY))
        failures.add_sample(_FAILED, {}, failed())
        for name, end_s in expiries().items():
            ends.add_sample(_EXPIRY, {"certificate": name}, end_s)
        yield from (failures, ends)

    page.pull(pull)
