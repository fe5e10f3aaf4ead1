from typing import Any

from serving.tools.dashboard.revisionsettings import SettingDifference, differences


def revision(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: object) -> dict[str, Any]:
    metadata = {"name": "hello-00001", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": list(containers), **spec}}


def row(name: str, older: str | None, newer: str | None) -> SettingDifference:
    return SettingDifference(name=name, older=older, newer=newer)


def test_images_resources_and_numbers_show_their_values() -> None:
    before = revision({"image": "a", "resources": {"limits": {"memory": "1Gi"}}}, containerConcurrency=10)
    after = revision({"image": "b", "resources": {"requests": {"cpu": "2"}}}, containerConcurrency=20, timeoutSeconds=5)
    assert differences(before, after) == [
        row("containerConcurrency", "10", "20"),
        row("image", "a", "b"),
        row("limits.memory", "1Gi", None),
        row("requests.cpu", None, "2"),
        row("timeoutSeconds", None, "5"),
    ]
    assert differences(before, before) == []


def test_variables_and_commands_show_that_they_differ_and_never_their_values() -> None:
    def made(word: str, **more: str) -> dict[str, Any]:
        secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": word, "key": word}}}
        env = [{"name": "SAME", "value": "zq-same"}, {"name": "KEY", "value": word}, secret]
        env += [{"name": name, "value": value} for name, value in more.items()]
        probe = {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": word}]}}
        container = {"image": "x", "command": ["run", word], "env": env, "readinessProbe": probe}
        annotations = {"serving.dev/command": word, "example.com/note": word}
        return revision(container, annotations=annotations, volumes=[{"name": word}])

    found = differences(made("zq-one"), made("zq-two", NEW="zq-three"))
    assert found == [
        *(row(name, "set", "another value") for name in ("command", "env KEY")),
        row("env NEW", None, "set"),
        *(row(name, "set", "another value") for name in ("env TOKEN", "example.com/note", "readinessProbe")),
        *(row(name, "set", "another value") for name in ("serving.dev/command", "volumes")),
    ]
    assert "zq" not in str(found)


def test_scaling_annotations_show_their_values_and_what_daemons_write_is_no_setting() -> None:
    before = {"autoscaling.knative.dev/max-scale": "4", "serving.knative.dev/routes": "a", "serving.dev/snapshot": "1f"}
    after = {
        "autoscaling.knative.dev/max-scale": "5",
        "autoscaling.serving.dev/learnt": "x",
        "serving.dev/snapshot": "2a",
    }
    assert differences(revision(annotations=before), revision(annotations=after, servingState="Reserve")) == [
        row("autoscaling.knative.dev/max-scale", "4", "5"),
        row("serving.dev/snapshot", "1f", "2a"),
    ]


def test_each_of_several_containers_is_named() -> None:
    before = revision({"name": "app", "image": "a"}, {"name": "log", "image": "b"})
    after = revision(
        {"name": "app", "image": "a"}, {"name": "log", "image": "c"}, initContainers=[{"name": "set", "image": "d"}]
    )
    assert differences(before, after) == [row("init set: image", None, "d"), row("log: image", "b", "c")]
