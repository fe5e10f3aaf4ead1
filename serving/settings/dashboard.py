"""Settings of the dashboard: its listener, its sources, and its callers."""

from typing import Annotated

from serving.settings.innertls import InnerTlsSettings
from serving.settings.knob import COUNT, TEXT, Knob, SettingsRecord


class DashboardSettings(SettingsRecord, frozen=True, kw_only=True):
    """All knobs of the dashboard."""

    address: Annotated[str, Knob(key="address", unit=TEXT)] = "127.0.0.1:6090"
    """Host and port of its listener; a socket handed down by the supervisor takes precedence. Its page needs
    the query token. Default: ours, 127.0.0.1:6090."""

    autoscaler_url: Annotated[str, Knob(key="autoscaler-url", unit=TEXT)] = "http://127.0.0.1:6081"
    """The autoscaler, whose decisions it follows; of several their URLs, separated by commas, or one name that stands for all
    their addresses: each tells its own. Default: ours, http://127.0.0.1:6081."""

    activator_metrics_url: Annotated[str, Knob(key="activator-metrics-url", unit=TEXT)] = (
        "http://127.0.0.1:6082/metrics"
    )
    """Page of the activator's metrics, the source of status classes and latencies; of several activators their pages,
    separated by commas, or one name that stands for all their addresses: they are added up. With nothing, or while no page
    answers there, these charts stay empty. Default: ours, http://127.0.0.1:6082/metrics."""

    activator_address: Annotated[str, Knob(key="activator-address", unit=TEXT)] = "127.0.0.1:8080"
    """Host and port of the activator's public listener, to which waking a service sends its request. Default: ours,
    127.0.0.1:8080."""

    token_file: Annotated[str, Knob(key="token-file", unit=TEXT)] = ""
    """File with the token whose holder may scale and wake services, move their traffic and read their logs, of at least 32
    characters; it is read at start. Empty makes the dashboard read-only, without logs. Default: ours, empty."""

    host_names: Annotated[str, Knob(key="host-names", unit=TEXT)] = ""
    """Names under which it may be asked beside localhost and 127.0.0.1, separated by commas; a request for any other host
    is refused, so that no page of another site can read it by rebinding its name. Default: ours, none."""

    connections_max: Annotated[int, Knob(key="connections-max", unit=COUNT, low=1, high=10_000)] = 64
    """Most open pages updated at once; one more is refused. Range: 1 to 10000. Default: ours, 64."""

    inner_tls: InnerTlsSettings = InnerTlsSettings()
    """TLS with the autoscalers and the activators."""
