"""Defaults of the fields that a revision's template omits, and rejected fields."""

from typing import Any

import msgspec
import pytest

from serving.controller.revisions.defaults import fields_not_allowed, spec_with_defaults, timeouts_too_long
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.resources import RevisionResources
from tests.unit.controller.builders import SETTINGS

ONE: Object = {"containers": [{"image": "app"}]}


def changed(**values: object) -> ControllerSettings:
    return msgspec.structs.replace(SETTINGS, **values)


def test_container_with_image_only_gets_all_defaults() -> None:
    assert spec_with_defaults(ONE, SETTINGS) == {
        "timeoutSeconds": 300,
        "containerConcurrency": 0,
        "containers": [
            {
                "name": "user-container",
                "image": "app",
                "resources": {},
                "readinessProbe": {"successThreshold": 1, "tcpSocket": {"port": 0}},
            }
        ],
    }


def test_defaulting_is_idempotent() -> None:
    once = spec_with_defaults(ONE, SETTINGS)
    assert spec_with_defaults(once, SETTINGS) == once


def test_given_fields_are_preserved() -> None:
    probe = {"httpGet": {"path": "/", "port": 80}, "successThreshold": 2}
    text = {
        "timeoutSeconds": 10,
        "containerConcurrency": 3,
        "containers": [{"name": "mine", "readinessProbe": probe, "resources": {"limits": {"cpu": "1"}}}],
    }
    assert spec_with_defaults(text, SETTINGS) == text


def test_timeout_0_is_replaced_by_default() -> None:
    assert spec_with_defaults({**ONE, "timeoutSeconds": 0}, SETTINGS)["timeoutSeconds"] == 300


@pytest.mark.parametrize(("timeout_s", "response_start_s"), [(600, 300), (300, None), (60, None)])
def test_response_start_timeout_is_set_only_if_below_timeout(timeout_s: int, response_start_s: int | None) -> None:
    spec = spec_with_defaults({**ONE, "timeoutSeconds": timeout_s}, SETTINGS)
    assert spec.get("responseStartTimeoutSeconds") == response_start_s


def test_response_start_timeout_0_is_not_set() -> None:
    settings = changed(revision_response_start_timeout_s=0)
    assert "responseStartTimeoutSeconds" not in spec_with_defaults({**ONE, "timeoutSeconds": 600}, settings)


def test_idle_timeout_is_set_from_settings() -> None:
    assert spec_with_defaults(ONE, changed(revision_idle_timeout_s=9))["idleTimeoutSeconds"] == 9


def test_only_container_with_port_gets_default_readiness_probe() -> None:
    spec = spec_with_defaults({"containers": [{"image": "a", "ports": [{}]}, {"image": "b"}]}, SETTINGS)
    assert [(container["name"], "readinessProbe" in container) for container in spec["containers"]] == [
        ("user-container-0", True),
        ("user-container-1", False),
    ]


def test_timeout_above_maximum_is_a_problem() -> None:
    problems = list(
        timeouts_too_long({"timeoutSeconds": 601, "idleTimeoutSeconds": 600}, changed(max_revision_timeout_s=600))
    )
    assert [problem.where for problem in problems] == ["spec.template.spec.timeoutSeconds"]


def secured(level: str, *, pod: Object | None = None, **container: Any) -> Object:  # noqa: ANN401 - JSON
    settings = msgspec.structs.replace(SETTINGS, secure_pod_defaults=level)
    spec = {"containers": [{"image": "x", **container}], **({"securityContext": pod} if pod else {})}
    security_context: Object = spec_with_defaults(spec, settings)["containers"][0].get("securityContext", {})
    return security_context


def test_secure_pod_defaults_are_disabled_by_default_value() -> None:
    assert secured("Disabled") == {}


def test_secure_pod_defaults_fill_unset_fields() -> None:
    bounded = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert secured("AllowRootBounded") == bounded
    assert secured("Enabled") == {**bounded, "runAsNonRoot": True}
    low = secured("Enabled", ports=[{"containerPort": 80}])
    assert low["capabilities"] == {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}


def test_secure_pod_defaults_fill_init_containers() -> None:
    settings = msgspec.structs.replace(SETTINGS, secure_pod_defaults="Enabled")
    spec = {**ONE, "initContainers": [{"image": "i"}, {"image": "j", "securityContext": {"runAsNonRoot": False}}]}
    first, second = spec_with_defaults(spec, settings)["initContainers"]
    assert first["securityContext"] == secured("Enabled")
    assert second["securityContext"] == {**secured("Enabled"), "runAsNonRoot": False}


def test_secure_pod_defaults_preserve_given_fields() -> None:
    stated = {
        "allowPrivilegeEscalation": True,
        "capabilities": {"drop": []},
        "runAsNonRoot": False,
        "seccompProfile": {"type": "Unconfined"},
    }
    assert secured("Enabled", securityContext=stated) == stated
    pod = {"runAsNonRoot": False, "seccompProfile": {"type": "Localhost"}}
    assert secured("Enabled", pod=pod).keys() == {"allowPrivilegeEscalation", "capabilities"}


@pytest.mark.parametrize(
    ("containers", "names"),
    [
        ([{}], ["init-container"]),
        ([{}, {"name": "own"}, {}], ["init-container-0", "own", "init-container-1"]),
        ([{}, {"name": "init-container-0"}], ["init-container-1", "init-container-0"]),
    ],
)
def test_unnamed_init_containers_get_unique_names(containers: list[Object], names: list[str]) -> None:
    spec = {**ONE, "initContainers": [{"image": "i", **container} for container in containers]}
    assert [init_container["name"] for init_container in spec_with_defaults(spec, SETTINGS)["initContainers"]] == names


def refused(spec: Object, **features: str) -> list[str]:
    return [str(problem.where) for problem in fields_not_allowed(spec, msgspec.structs.replace(SETTINGS, **features))]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_privileged_security_context_fields_are_rejected(field: str) -> None:
    context = {"privileged": True, "procMount": "Unmasked", "capabilities": {"add": ["SYS_ADMIN"]}}
    at = f"spec.template.spec.{field}[0].securityContext"
    assert refused({field: [{"securityContext": context}]}) == [
        f"{at}.privileged",
        f"{at}.procMount",
        f"{at}.capabilities.add",
    ]


def test_unprivileged_values_are_allowed() -> None:
    context = {
        "privileged": False,
        "procMount": "Default",
        "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
    }
    assert refused({"containers": [{"securityContext": context}], "volumes": [{"name": "v", "emptyDir": {}}]}) == []


@pytest.mark.parametrize("state", ["allowed", "enabled"])
def test_feature_flag_allows_added_capabilities(state: str) -> None:
    spec = {"containers": [{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}
    assert refused(spec, add_capabilities=state) == []


def test_host_path_volumes_require_enabled_feature() -> None:
    spec = {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}
    where = "spec.template.spec.volumes[0].hostPath"
    assert [refused(spec, host_path_volumes=state) for state in ("disabled", "allowed", "enabled")] == [
        [where],
        [where],
        [],
    ]
    (problem,) = fields_not_allowed(spec, SETTINGS)
    assert problem.what == "HostPath volume support is disabled, but found HostPath volume v"


def test_default_resources_fill_unset_requests_and_limits() -> None:
    resources = RevisionResources(cpu_request="400m", memory_request="100M", cpu_limit="1")
    spec = {
        "containers": [{"image": "app", "resources": {"requests": {"cpu": "1m"}}}],
        "initContainers": [{"image": "i"}],
    }
    filled = spec_with_defaults(spec, changed(revision_resources=resources))
    assert filled["containers"][0]["resources"] == {
        "requests": {"cpu": "1m", "memory": "100M"},
        "limits": {"cpu": "1"},
    }
    assert "resources" not in filled["initContainers"][0]


@pytest.mark.parametrize(("value", "links"), [("false", None), ("true", True), ("default", True)])
def test_enable_service_links_defaults_to_setting(value: str, links: bool | None) -> None:
    settings = changed(enable_service_links=value)
    assert spec_with_defaults(ONE, settings).get("enableServiceLinks") is links
    assert spec_with_defaults({**ONE, "enableServiceLinks": False}, settings)["enableServiceLinks"] is False
