"""Limits of the HTTP engine, and clashes of queue-proxy settings."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.http import HttpSettings
from serving.core.settings.knob import fields_of
from serving.core.settings.queueproxy import QueueProxySettings


def test_client_idle_limit_exceeds_upstream_idle_limit() -> None:
    settings = HttpSettings()
    assert settings.client_idle_max_s > settings.upstream_idle_max_s


def test_pause_minimum_above_maximum_is_a_clash() -> None:
    settings = QueueProxySettings(probe_pause_min_s=1.0, report_retry_min_s=6.0)
    assert [clash.fields[0] for clash in settings.check()] == ["probe_pause_min_s", "report_retry_min_s"]


def test_trusted_proxies_are_validated_as_networks() -> None:
    (unit,) = [field.knob.unit for field in fields_of(HttpSettings) if field.name == "trusted_proxies"]
    assert unit.read("10.0.0.0/8, 192.0.2.7") == "10.0.0.0/8, 192.0.2.7"
    assert not unit.read("")
    with pytest.raises(InvalidValue, match=r"'10.0.0.1/8' is not networks as 10.0.0.0/8, separated by commas"):
        unit.read("192.0.2.7, 10.0.0.1/8")


def test_hop_settings_allow_larger_head() -> None:
    settings = HttpSettings(head_bytes_max=1024, header_count_max=10).with_hop_room()
    assert (settings.head_bytes_max, settings.header_count_max) == (5120, 26)
