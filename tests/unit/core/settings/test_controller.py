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


def test_defaults_hold_together() -> None:
    assert list(ControllerSettings().check()) == []


@pytest.mark.parametrize("plain", [True, False])
def test_ages_and_numbers_may_be_disabled(plain: bool) -> None:
    for name in ("retain_since_create_time_s", "max_non_active_revisions"):
        assert field(name).knob.read("disabled", plain=plain) == DISABLED


def test_what_is_not_disabled_is_read_in_its_unit() -> None:
    assert field("retain_since_create_time_s").knob.read("48h", plain=False) == 172800
    assert field("retain_since_create_time_s").knob.read("60", plain=True) == 60


def test_disabled_is_written_as_a_word() -> None:
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
def test_a_domain_template_makes_a_host(text: str, right: bool) -> None:
    knob = field("domain_template").knob
    if right:
        assert knob.read(text, plain=False) == text
    else:
        with pytest.raises(InvalidValue):
            knob.read(text, plain=False)


@pytest.mark.parametrize("text", ["-a", "a b", "A", ""])
def test_a_domain_is_a_host(text: str) -> None:
    with pytest.raises(InvalidValue):
        field("domain").knob.read(text, plain=False)


def test_a_domain_is_taken_unchanged() -> None:
    assert field("domain").knob.read("example.com", plain=False) == "example.com"


@pytest.mark.parametrize("name", ["revision_timeout_s", "revision_response_start_timeout_s", "revision_idle_timeout_s"])
def test_no_default_timeout_is_above_the_longest(name: str) -> None:
    values: dict[str, Any] = {"revision_timeout_s": 1, "revision_response_start_timeout_s": 1, name: 61}
    settings = ControllerSettings(max_revision_timeout_s=60, **values)
    assert [clash.fields[0] for clash in settings.check()] == [name]


@pytest.mark.parametrize(("most", "clashes"), [(5, 1), (20, 0), (DISABLED, 0)])
def test_no_more_revisions_are_kept_than_may_be(most: int, clashes: int) -> None:
    settings = ControllerSettings(max_non_active_revisions=most)
    assert len(list(settings.check())) == clashes


def with_gateway(text: str) -> ControllerSettings:
    environment = {"SERVING_CONTROLLER_GATEWAY": text, "SERVING_CONTROLLER_PUBLIC_SERVICES": "true"}
    return load(CONTROLLER, registry=DAEMONS, environment=environment).settings


@pytest.mark.parametrize("text", ["", "knative-serving/serving", "gateways/front.example"])
def test_a_gateway_is_a_namespace_and_a_name(text: str) -> None:
    assert with_gateway(text).gateway == text


@pytest.mark.parametrize("text", ["serving", "a/b/c", "/serving", "gateways/", "Gateways/front", "$(SPACE)/serving"])
def test_what_is_no_gateway_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="NAMESPACE/NAME of a Gateway, or nothing"):
        with_gateway(text)


def test_a_gateway_needs_services() -> None:
    (clash,) = ControllerSettings(gateway="gateways/front").check()
    assert "public_services" in clash.fields
    assert not list(ControllerSettings(gateway="gateways/front", public_services=True).check())


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("380", 380), ("380s", 380), ("2m", 120)])
def test_a_rollout_duration_is_in_seconds_unless_it_has_a_unit(text: str, seconds: float) -> None:
    assert field("rollout_duration_s").knob.read(text, plain=False) == seconds


@pytest.mark.parametrize("text", ["-1s", "1.5s", "soon"])
def test_a_rollout_duration_is_in_whole_seconds(text: str) -> None:
    with pytest.raises(InvalidValue, match="in whole seconds"):
        field("rollout_duration_s").knob.read(text, plain=False)


def test_pages_of_activators_are_addresses() -> None:
    knob = field("activator_pages").knob
    text = "127.0.0.1:6082,[::1]:9090,activator-1:80"
    assert knob.read(text, plain=True) == text
    assert ControllerSettings(activator_pages=text).activator_page_addresses == tuple(text.split(","))
    assert ControllerSettings().activator_page_addresses == ()


@pytest.mark.parametrize("text", ["activator", "http://127.0.0.1:6082", "127.0.0.1:6082,", "a:b"])
def test_other_pages_of_activators_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="HOST:PORT"):
        field("activator_pages").knob.read(text, plain=True)


def test_there_are_no_more_workers_than_at_most() -> None:
    (clash,) = ControllerSettings(workers=9, workers_max=8).check()
    assert (clash.fields, clash.expected) == (("workers", "workers_max"), "at most 8")


@pytest.mark.parametrize("text", ["{kind", "{kind: Issuer, name: a, group: [b]}", "[]"])
def test_an_issuer_is_a_mapping(text: str) -> None:
    with pytest.raises(InvalidValue, match="kind and name"):
        field("issuer").knob.read(text, plain=False)
