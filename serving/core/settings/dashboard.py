"""Settings of the dashboard: its listener, its sources, and its callers."""

from typing import Annotated

from serving.core.model.ports import ACTIVATOR_METRICS_PORT, DASHBOARD_PORT, STATS_PORT
from serving.core.settings.knob import BYTES, COUNT, NUMBER, TEXT, Knob, SettingsRecord


class DashboardSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the dashboard."""

    address: Annotated[str, Knob(key="address", unit=TEXT)] = f"127.0.0.1:{DASHBOARD_PORT}"
    """Host and port of the dashboard's listener. The page needs the query token. Default:
    ours, 127.0.0.1:6090.
    """

    autoscaler_url: Annotated[str, Knob(key="autoscaler-url", unit=TEXT)] = f"http://127.0.0.1:{STATS_PORT}"
    """URL of the autoscaler. Several autoscalers need several URLs, separated by commas, or one name with several
    addresses. Default: ours, http://127.0.0.1:6081.
    """

    activator_metrics_url: Annotated[str, Knob(key="activator-metrics-url", unit=TEXT)] = (
        f"http://127.0.0.1:{ACTIVATOR_METRICS_PORT}/metrics"
    )
    """URL of the activator's metrics page, for status classes and latencies. Several activators need several URLs,
    separated by commas, or one name with several addresses. Without a URL the charts of status classes and latencies
    are empty. Default: ours, http://127.0.0.1:6082/metrics.
    """

    activator_address: Annotated[str, Knob(key="activator-address", unit=TEXT)] = "127.0.0.1:8080"
    """Host and port of the activator's public listener. The action "wake" sends its request there. Default: ours,
    127.0.0.1:8080.
    """

    token_file: Annotated[str, Knob(key="token-file", unit=TEXT)] = ""
    """File with the token for actions (scale, wake, traffic) and logs, of at least 32 characters, read at start.

    If empty, the dashboard is read-only and shows no logs. Default: ours, empty.
    """

    host_names: Annotated[str, Knob(key="host-names", unit=TEXT)] = ""
    """Accepted Host names in addition to localhost and 127.0.0.1, separated by commas. Other Hosts are rejected to
    prevent DNS rebinding. Default: ours, none.
    """

    proxy_user_header: Annotated[str, Knob(key="proxy-user-header", unit=TEXT)] = ""
    """Header in which an authenticating proxy sends the user's name, such as X-Remote-User. The header is valid only
    together with the header X-Serving-Proxy-Secret, which must equal the content of proxy-secret-file. If empty, a
    proxy cannot name users. Default: ours, empty.
    """

    proxy_secret_file: Annotated[str, Knob(key="proxy-secret-file", unit=TEXT)] = ""
    """File with the secret that only the proxy has, of at least 32 characters, read at start. The file is required with
    proxy-user-header. Default: ours, empty.
    """

    proxy_users: Annotated[str, Knob(key="proxy-users", unit=TEXT)] = ""
    """Users of the proxy with their role and namespaces: "ann=view:shop+team, bob=deploy:shop, eve=admin:*". A user
    that is not listed sees nothing. Default: ours, none.
    """

    connections_max: int = 64
    """Most open pages updated at once; one more is refused. Source: ours, 64."""

    history_file: Annotated[str, Knob(key="history-file", unit=TEXT)] = ""
    """File for the history of charts. If empty, ``serving up`` uses history.db in its state folder, and a cluster uses
    no file. "none" means no file. Without a file the dashboard keeps the last hour in memory. Default: ours, empty.
    """

    history_days: Annotated[int, Knob(key="history-days", unit=COUNT, low=1, high=366)] = 14
    """Number of days in the history file. Older values are stored in longer time steps. Range: 1 to 366. Default: ours,
    14.
    """

    history_bytes_max: Annotated[int, Knob(key="history-bytes-max", unit=BYTES, low=2**20, high=2**40)] = 200 * 2**20
    """Maximum size of the history file; the oldest rows of each time step are deleted first. Range: 1Mi to 1Ti.
    Default: ours, 200Mi.
    """

    price_pod_hour: Annotated[float, Knob(key="price-pod-hour", unit=NUMBER, low=0)] = 0.0
    """Price of a pod for an hour, in any currency, for ``serving cost`` and the dashboard.

    Range: at least 0. Default: ours, 0.
    """

    price_gib_hour: Annotated[float, Knob(key="price-gib-hour", unit=NUMBER, low=0)] = 0.0
    """Price of a GiB of requested memory for an hour, for ``serving cost`` and the dashboard.

    Range: at least 0. Default: ours, 0.
    """

    inner_authority_file: Annotated[str, Knob(key="inner-authority-file", unit=TEXT)] = ""
    """File with the inner authority's certificate, to query autoscalers and activators over TLS.

    If the file is empty, the dashboard uses plain HTTP; while the file is missing, the dashboard queries no daemon.
    Default: ours, empty, for plain HTTP; on a cluster that of the Secret serving-inner-authority, which the controller
    writes.
    """
