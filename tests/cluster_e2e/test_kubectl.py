"""``config/`` and the overlays of the docs on a real server, as a GitOps tool applies them with kubectl."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from serving.controller.revisions.defaults import spec_with_defaults
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.tools.cli.client.tree import OPTIONAL_KINDS, tree_folder
from tests.cluster_e2e.server import is_real, needed_objects
from tests.unit.config.policies import CASES, service
from tests.unit.config.test_tree import documented_overlays, overlaid, overlay_for_older_servers
from tests.unit.controller.revisions.test_sidecar import pod_of

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_real(), reason="SERVING_TEST_KUBECONFIG names no server"),
    pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed"),
]


def kubectl(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": os.environ["SERVING_TEST_KUBECONFIG"]}
    return subprocess.run(
        [shutil.which("kubectl") or "", *arguments],
        input=text,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def has_optional_kinds() -> bool:
    return "mutatingadmissionpolicies" in kubectl("api-resources", "-o", "name").stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``config/``; for a server of an older version, the overlay that the docs have for it."""
    if has_optional_kinds():
        return tree_folder()
    folder = tmp_path_factory.mktemp("older")
    overlaid(folder, overlay_for_older_servers())
    return folder / "mine"


def test_a_second_apply_and_a_diff_are_empty(tree: Path) -> None:
    """It takes 5 s: each kubectl applies 60 objects."""
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-o", "yaml", "-k")
    first, second = (kubectl(*apply, str(tree)) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    versions = [
        {
            (resource["kind"], resource["metadata"]["name"]): resource["metadata"]["generation"]
            for resource in resources
            if "generation" in resource["metadata"]
        }
        for resources in (yaml.safe_load(done.stdout)["items"] for done in (first, second))
    ]
    assert versions[0] == versions[1]
    diff = kubectl("diff", "--server-side", "--field-manager=gitops", "-k", str(tree))
    assert (diff.returncode, diff.stdout) == (0, "")


@pytest.mark.parametrize("overlay", documented_overlays())
def test_an_overlay_of_the_docs_is_accepted(overlay: str, tmp_path: Path) -> None:
    """Kinds that others define are left out where the server does not have them."""
    served = kubectl("api-versions").stdout.split()
    absent = frozenset() if has_optional_kinds() else OPTIONAL_KINDS
    objects = [
        resource
        for resource in overlaid(tmp_path, overlay).values()
        if resource["apiVersion"] in served and resource["kind"] not in absent
    ]
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-")
    # A dry run creates no namespace, and the others are refused without theirs.
    namespaces = yaml.safe_dump_all(resource for resource in objects if resource["kind"] == "Namespace")
    assert kubectl(*apply, text=namespaces).returncode == 0
    done = kubectl(*apply, "--dry-run=server", text=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


def refusal(body: dict[str, Any]) -> str:
    """The text with which the server refuses a new object; "" if it takes it."""
    until_s = time.monotonic() + 60
    while True:
        done = kubectl("create", "--dry-run=server", "-n", "default", "-f", "-", text=yaml.safe_dump(body))
        # A policy that was just written is not ready yet.
        if "(ServiceUnavailable)" not in done.stderr or time.monotonic() > until_s:
            break
        time.sleep(0.2)
    _, is_denied, text = done.stderr.partition("denied request: ")
    return text.strip() if is_denied else done.stderr


def test_policies_refuse_at_the_door_with_our_own_words(tree: Path) -> None:
    """It takes 12 s: a kubectl for each case. Policies are in force some time after they were written."""
    done = kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-k", str(tree))
    assert done.returncode == 0, done.stderr
    expected = {name: text for name, (_, text) in CASES.items() if text}
    texts = dict.fromkeys(expected, "")
    until_s = time.monotonic() + 240
    # Each policy has its own time.
    while late := [name for name, text in expected.items() if not texts[name].startswith(text)]:
        texts |= {name: refusal(CASES[name][0]) for name in late}
        if time.monotonic() > until_s:
            break
    texts |= {name: refusal(body) for name, (body, text) in CASES.items() if not text}
    assert {name: text[: len(CASES[name][1])] for name, text in texts.items() if text} == expected
    ours = [policy["metadata"]["name"] for policy in needed_objects() if policy["kind"] == "ValidatingAdmissionPolicy"]
    assert ours

    def type_checks() -> dict[str, Object | None]:
        """The warnings of each policy; None until the server has checked its latest generation."""
        policies = json.loads(kubectl("get", "validatingadmissionpolicies", *ours, "-o", "json").stdout)["items"]
        return {
            policy["metadata"]["name"]: policy.get("status", {}).get("typeChecking")
            if policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"]
            else None
            for policy in policies
        }

    until_s = time.monotonic() + 240
    while None in (checks := type_checks()).values() and time.monotonic() < until_s:
        time.sleep(0.2)
    assert checks == {name: {} for name in ours}


def test_creator_and_modifier_are_written_and_kept(tree: Path) -> None:
    if not has_optional_kinds():
        pytest.skip("this server has no MutatingAdmissionPolicy")
    # By the manager of the other tests: of fields with two owners an overlay cannot remove one.
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-k", str(tree))
    assert kubectl(*apply).returncode == 0
    creator, modifier = "serving.knative.dev/creator", "serving.knative.dev/lastModifier"
    forged = {**service(own={creator: "forged"}), "metadata": {"name": "admitted", "annotations": {creator: "forged"}}}
    resource = ("service.serving.knative.dev", "admitted", "-n", "default")
    as_bob = ("--as", "bob", "--as-group", "system:masters")

    def stamps() -> tuple[str, str]:
        annotations = json.loads(kubectl("get", *resource, "-o", "json").stdout)["metadata"].get("annotations", {})
        return annotations.get(creator, ""), annotations.get(modifier, "")

    try:
        until_s = time.monotonic() + 240
        me = "forged"
        while me == "forged" and time.monotonic() < until_s:
            kubectl("delete", "--ignore-not-found", *resource)
            assert kubectl("create", "-n", "default", "-f", "-", text=yaml.safe_dump(forged)).returncode == 0
            me, _ = stamps()
        assert stamps() == (me, me)
        # The policy that makes the annotations immutable takes effect at another time.
        annotate = ("annotate", *resource, f"{creator}=x", "--overwrite", "--dry-run=server")
        refusal_text = f"metadata.annotations[{creator}]: Invalid value: annotation value is immutable"
        while refusal_text not in (stderr := kubectl(*annotate).stderr) and time.monotonic() < until_s:
            time.sleep(0.2)
        assert refusal_text in stderr
        spec = '{"spec":{"template":{"spec":{"timeoutSeconds":60}}}}'
        assert kubectl("patch", *resource, *as_bob, "--type=merge", "-p", spec).returncode == 0
        assert stamps() == (me, "bob")
        plain = {**service(timeoutSeconds=60), "metadata": {"name": "admitted"}}
        replaced = kubectl("replace", "-n", "default", "-f", "-", text=yaml.safe_dump(plain))
        assert (replaced.returncode, stamps()[0]) == (0, me), replaced.stderr
    finally:
        kubectl("delete", "--ignore-not-found", *resource)


@pytest.fixture(scope="module")
def restricted() -> Iterator[str]:
    """A namespace that enforces the restricted standard, with its account."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"generateName": "restricted-e2e-", "labels": labels}
    body = yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": space})
    done = kubectl("create", "-f", "-", "-o", "name", text=body)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip().removeprefix("namespace/")
    until_s = time.monotonic() + 60
    while kubectl("get", "serviceaccount", "default", "-n", name).returncode and time.monotonic() < until_s:
        time.sleep(0.2)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize(
    ("level", "pod", "missing"),
    [
        ("Enabled", {}, []),
        ("Enabled", {"initContainers": [{"image": "first"}]}, []),
        ("Enabled", {"containers": [{"image": "x", "ports": [{"containerPort": 80}]}]}, []),
        ("Enabled", {"securityContext": {"runAsUser": 0}}, ["runAsUser=0"]),
        ("AllowRootBounded", {}, ["runAsNonRoot != true"]),
        (
            "Disabled",
            {},
            [
                "allowPrivilegeEscalation != false",
                "unrestricted capabilities",
                "runAsNonRoot != true",
                "seccompProfile",
            ],
        ),
    ],
)
def test_pods_fit_the_restricted_standard_with_secure_defaults(
    restricted: str, level: str, pod: Object, missing: list[str]
) -> None:
    """The pods that the controller writes, by each level of ``secure-pod-defaults``."""
    settings = msgspec.structs.replace(ControllerSettings(), secure_pod_defaults=level)
    spec = spec_with_defaults({"containers": [{"image": "x", "ports": [{"containerPort": 8080}]}], **pod}, settings)
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod_of(spec=spec)}
    done = kubectl("create", "--dry-run=server", "-n", restricted, "-f", "-", text=yaml.safe_dump(body))
    assert (done.returncode != 0) == bool(missing), done.stderr
    assert [text for text in missing if text not in done.stderr] == []
    assert "queue-proxy" not in done.stderr
