"""Limits of the HTTP engine hold together, and clashes of the queue-proxy's are told."""

from serving.settings.http import HttpSettings
from serving.settings.queueproxy import QueueProxySettings


def test_connections_of_our_clients_outlive_the_idle_time_of_our_own() -> None:
    settings = HttpSettings()
    assert settings.client_idle_max_s > settings.upstream_idle_max_s


def test_a_shortest_pause_above_the_longest_is_told() -> None:
    settings = QueueProxySettings(probe_pause_min_s=1.0, report_retry_min_s=6.0)
    assert [clash.fields[0] for clash in settings.check()] == ["probe_pause_min_s", "report_retry_min_s"]
