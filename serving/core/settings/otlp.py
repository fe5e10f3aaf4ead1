"""Export of spans and metrics by OTLP over HTTP: endpoint and period; off by default.

The field ``otlp`` of each daemon's record has this type. Sending needs the extra ``serving[otel]``.
"""

from typing import Annotated

import msgspec

from serving.core.settings.knob import TEXT, Knob


class OtlpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OTLP receiver, and the period of metric exports; spans are sent after they end."""

    endpoint: Annotated[str, Knob(key="endpoint", unit=TEXT)] = ""
    """Base URL of a receiver of OTLP over HTTP, such as http://127.0.0.1:4318; metrics go to /v1/metrics below this
    URL, and spans go to /v1/traces. If empty, nothing is sent. The setting needs the extra serving[otel]. Default:
    ours, empty.
    """

    metrics_period_s: float = 60.0
    """Time between two sends of all numbers of the page, in seconds, if an endpoint is set. 0 means that no numbers are
    sent. Source: OpenTelemetry's OTEL_METRIC_EXPORT_INTERVAL, 60s."""
