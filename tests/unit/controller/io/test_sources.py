"""Notes about a ConfigMap."""

import msgspec

from serving.controller.io.sources import missing_note, missing_reason, settings_notes
from serving.core.model.errors import Forbidden, NotFound, Problem
from serving.core.settings.live import AppliedConfigMap
from serving.net.cluster.kinds import HTTP_ROUTE

APPLIED = AppliedConfigMap(daemon="autoscaler", config_map="config-autoscaler")
CONFIG_MAP = {"metadata": {"name": "config-autoscaler", "namespace": "knative-serving", "uid": "u"}}


def notes_of(applied: AppliedConfigMap) -> list[tuple[str, str, bool]]:
    return [(note.reason, note.message, note.warning) for note in settings_notes(applied, CONFIG_MAP)]


def test_refused_settings_note_lists_all_problems() -> None:
    problems = (
        Problem(where="ConfigMap config-autoscaler, a", what="wrong", expected="right"),
        Problem(where="ConfigMap config-autoscaler, b", what="wrong", expected="right"),
    )
    ((reason, message, warning),) = notes_of(msgspec.structs.replace(APPLIED, problems=problems))
    assert (reason, warning) == ("SettingsRefused", True)
    assert message.startswith("The autoscaler keeps the settings that it has: ")
    assert "config-autoscaler, a" in message
    assert "config-autoscaler, b" in message


def test_applied_and_restart_only_settings_are_separate_notes() -> None:
    assert notes_of(msgspec.structs.replace(APPLIED, changed=("stable_window_s",), waiting=("stats_address",))) == [
        ("SettingsChanged", "The autoscaler has taken over: stable_window_s", False),
        ("SettingsWaitForRestart", "The autoscaler takes over when it is started again: stats_address", True),
    ]


def test_note_refers_to_config_map_without_kind() -> None:
    (note,) = settings_notes(AppliedConfigMap(daemon="d", config_map="c", changed=("x",)), CONFIG_MAP)
    assert (note.about["apiVersion"], note.about["kind"]) == ("v1", "ConfigMap")


def test_missing_gateway_api_reason_has_gateway_and_cause() -> None:
    unknown = missing_reason(HTTP_ROUTE, NotFound("no such page"), gateway="gateways/front")
    assert unknown.startswith('Gateway "gateways/front" is set, and the server does not know HTTPRoutes; expected the ')
    assert unknown.endswith(": no such page")
    assert "does not let us list HTTPRoutes" in missing_reason(HTTP_ROUTE, Forbidden("no"), gateway="gateways/front")


def test_missing_gateway_note_refers_to_controller_config_map() -> None:
    note = missing_note(HTTP_ROUTE, "knative-serving", "there are none")
    assert note.about["metadata"] == {"name": "config-controller", "namespace": "knative-serving"}
    assert (note.reason, note.message, note.warning) == ("GatewayApiMissing", "there are none", True)


def test_unknown_settings_key_is_a_separate_warning() -> None:
    unknown = Problem(where="ConfigMap config-autoscaler", what="it has no key a", expected="b")
    assert notes_of(msgspec.structs.replace(APPLIED, unknown=(unknown,))) == [
        (
            "SettingsUnknown",
            "Keys without effect, the others apply: ConfigMap config-autoscaler: it has no key a; expected b",
            True,
        )
    ]
