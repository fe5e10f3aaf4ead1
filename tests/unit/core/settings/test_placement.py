"""Settings of placement."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.placement import (
    LOAD_WATCHER,
    METRICS_SERVER,
    PROMETHEUS,
    ExtenderTlsSettings,
    LoadSourceSettings,
    PlacementQuirks,
    PlacementSettings,
    read_weights,
)


def test_defaults_are_those_of_kubernetes_and_trimaran() -> None:
    settings = PlacementSettings()
    assert (settings.provider, settings.score_weights, settings.quirks) == ("default", "", PlacementQuirks())
    assert (settings.smoothing_window_size, settings.cpu_risk_limit_weight, settings.memory_risk_limit_weight) == (
        5,
        0.5,
        0.5,
    )


def test_defaults_have_no_clash() -> None:
    assert list(PlacementSettings().check()) == []


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("", {}),
        ("  ", {}),
        ("LeastRequested=1", {"LeastRequested": 1}),
        (" A = 1 ,B=10000", {"A": 1, "B": 10000}),
    ],
)
def test_weights_are_parsed(text: str, weights: dict[str, int]) -> None:
    assert read_weights(text) == weights


@pytest.mark.parametrize("text", ["A", "A=", "A=x", "A=0", "A=-1", "A=10001", "A=1,", "A=1,A=2", "A=1 B=2"])
def test_invalid_weights_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not weights such as"):
        read_weights(text)


def test_invalid_weights_are_a_clash() -> None:
    (clash,) = PlacementSettings(score_weights="A=0").check()
    assert (clash.fields, "'A=0' is not" in clash.what) == (("score_weights",), True)


def test_all_or_none_of_tls_files_is_valid() -> None:
    assert list(ExtenderTlsSettings().check()) == []
    assert list(ExtenderTlsSettings(certificate_file="c", key_file="k", client_ca_file="a").check()) == []


@pytest.mark.parametrize("files", [{"certificate_file": "c"}, {"key_file": "k"}, {"client_ca_file": "a"}])
def test_incomplete_tls_files_are_a_clash(files: dict[str, str]) -> None:
    (clash,) = ExtenderTlsSettings(**files).check()  # type: ignore[arg-type]
    assert clash.fields[0].startswith("tls.")


def test_paths_are_files_that_are_set() -> None:
    assert ExtenderTlsSettings(certificate_file="c", key_file="k").paths == ("c", "k")


@pytest.mark.parametrize("url", ["ftp://x", "prometheus:9090", "http://", "http://[", "http://user:secret@x"])
def test_invalid_url_is_a_clash_without_credentials_in_message(url: str) -> None:
    (clash,) = LoadSourceSettings(source=PROMETHEUS, url=url).check()
    assert clash.fields == ("load.url",)
    assert "secret" not in clash.what + clash.expected


@pytest.mark.parametrize(
    ("source", "default"),
    [
        # Of the cluster's API, whose address a client has.
        (METRICS_SERVER, ""),
        (PROMETHEUS, "http://prometheus-k8s.monitoring:9090"),
        (LOAD_WATCHER, "http://load-watcher.loadwatcher:2020"),
    ],
)
def test_address_of_source_is_configured_url_or_default(source: str, default: str) -> None:
    assert LoadSourceSettings(source=source).address == default
    assert LoadSourceSettings(source=source, url="http://p:9/").address == "http://p:9"
