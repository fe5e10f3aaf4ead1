"""Derived values of the settings of the controller."""

from typing import Any

import pytest

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.settings.controller import DISABLED, ControllerSettings
from serving.core.settings.daemons import CONTROLLER, DAEMONS
from serving.core.settings.knob import Field
from serving.core.settings.load import load


def field(name: str) -> Field:
    return next(each_field for each_field in CONTROLLER.fields() if each_field.name == name)


def test_defaults_have_no_clash() -> None:
    assert list(ControllerSettings().check()) == []


@pytest.mark.parametrize("plain", [True, False])
def test_retention_settings_accept_disabled(plain: bool) -> None:
    for name in ("retain_since_create_time_s", "max_non_active_revisions"):
        assert field(name).knob.read("disabled", plain=plain) == DISABLED


def test_retention_age_is_read_as_duration_or_plain_seconds() -> None:
    assert field("retain_since_create_time_s").knob.read("48h", plain=False) == 172800
    assert field("retain_since_create_time_s").knob.read("60", plain=True) == 60


def test_disabled_is_written_as_text() -> None:
    write = field("retain_since_create_time_s").knob.unit.write
    assert (write(DISABLED), write(172800.0)) == ("disabled", "48h")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("{{.Name}}.{{.Namespace}}.{{.Domain}}", True),
        ("{{ .Name }}-{{.Namespace}}.{{.Domain}}", True),
        ("{{.Name}}.{{.Domain}}", True),
        ('{{.Name}}-{{.Namespace}}.{{ index .Annotations "sub"}}.{{.Domain}}', True),
        ("{{.Name}}.{{.Labels.team}}.{{.Domain}}", False),
        ("{{.Name}}.{{.Domain}}/path", False),
        ("", False),
        ("{{.Name}}_{{.Namespace}}.{{.Domain}}", False),
        ("{{if .Name}}{{.Namespace}}.{{.Domain}}", False),
    ],
)
def test_domain_template_must_yield_a_host(text: str, right: bool) -> None:
    knob = field("domain_template").knob
    if right:
        assert knob.read(text, plain=False) == text
    else:
        with pytest.raises(InvalidValue):
            knob.read(text, plain=False)


@pytest.mark.parametrize("text", ["-a", "a b", "A", ""])
def test_invalid_domain_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        field("domain").knob.read(text, plain=False)


def test_domain_is_read_unchanged() -> None:
    assert field("domain").knob.read("example.com", plain=False) == "example.com"


@pytest.mark.parametrize("name", ["revision_timeout_s", "revision_response_start_timeout_s", "revision_idle_timeout_s"])
def test_default_timeout_above_maximum_is_a_clash(name: str) -> None:
    values: dict[str, Any] = {"revision_timeout_s": 1, "revision_response_start_timeout_s": 1, name: 61}
    settings = ControllerSettings(max_revision_timeout_s=60, **values)
    assert [clash.fields[0] for clash in settings.check()] == [name]


@pytest.mark.parametrize(("most", "clashes"), [(5, 1), (20, 0), (DISABLED, 0)])
def test_max_non_active_revisions_below_minimum_is_a_clash(most: int, clashes: int) -> None:
    settings = ControllerSettings(max_non_active_revisions=most)
    assert len(list(settings.check())) == clashes


def with_gateway(text: str) -> ControllerSettings:
    environment = {"SERVING_CONTROLLER_GATEWAY": text, "SERVING_CONTROLLER_PUBLIC_SERVICES": "true"}
    return load(CONTROLLER, registry=DAEMONS, environment=environment).settings


@pytest.mark.parametrize("text", ["", "knative-serving/serving", "gateways/front.example"])
def test_gateway_is_namespace_and_name_or_empty(text: str) -> None:
    assert with_gateway(text).gateway == text


@pytest.mark.parametrize("text", ["serving", "a/b/c", "/serving", "gateways/", "Gateways/front", "$(SPACE)/serving"])
def test_invalid_gateway_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="NAMESPACE/NAME of a Gateway, or nothing"):
        with_gateway(text)


def test_gateway_requires_public_services() -> None:
    (clash,) = ControllerSettings(gateway="gateways/front").check()
    assert "public_services" in clash.fields
    assert not list(ControllerSettings(gateway="gateways/front", public_services=True).check())


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("380", 380), ("380s", 380), ("2m", 120)])
def test_rollout_duration_defaults_to_unit_seconds(text: str, seconds: float) -> None:
    assert field("rollout_duration_s").knob.read(text, plain=False) == seconds


@pytest.mark.parametrize("text", ["-1s", "1.5s", "soon"])
def test_rollout_duration_must_be_whole_seconds(text: str) -> None:
    with pytest.raises(InvalidValue, match="in whole seconds"):
        field("rollout_duration_s").knob.read(text, plain=False)


def test_activator_pages_are_addresses() -> None:
    knob = field("activator_pages").knob
    text = "127.0.0.1:6082,[::1]:9090,activator-1:80"
    assert knob.read(text, plain=True) == text
    assert ControllerSettings(activator_pages=text).activator_page_addresses == tuple(text.split(","))
    assert ControllerSettings().activator_page_addresses == ()


@pytest.mark.parametrize("text", ["activator", "http://127.0.0.1:6082", "127.0.0.1:6082,", "a:b"])
def test_invalid_activator_pages_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="HOST:PORT"):
        field("activator_pages").knob.read(text, plain=True)


def test_workers_above_maximum_is_a_clash() -> None:
    (clash,) = ControllerSettings(workers=9, workers_max=8).check()
    assert (clash.fields, clash.expected) == (("workers", "workers_max"), "at most 8")


@pytest.mark.parametrize("text", ["{kind", "{kind: Issuer, name: a, group: [b]}", "[]"])
def test_invalid_issuer_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="kind and name"):
        field("issuer").knob.read(text, plain=False)
