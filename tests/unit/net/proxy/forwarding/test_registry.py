"""Refusals by code, and their log line."""

import logging

import pytest

from serving.net.proxy.forwarding.client import Refusals
from serving.net.proxy.http1.requesthead import RefusalCode


def test_refusals_are_counted_by_code_and_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    with caplog.at_level(logging.DEBUG):
        refusals.record(RefusalCode.HOST, "Host is missing", "127.0.0.1")
        refusals.record("h2_protocol_error", "a frame on an idle stream", "127.0.0.1")
        refusals.record(RefusalCode.HOST, "Host is missing", "127.0.0.1")
    assert refusals.counts == {"host": 2, "h2_protocol_error": 1}
    assert caplog.messages[0] == "refused host from 127.0.0.1: Host is missing"
