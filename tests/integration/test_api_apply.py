"""Server-side apply with a real kubectl: owners of fields, conflicts, force, removal, dry runs."""

import msgspec

from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, SERVING_SERVICE
from tests.integration.kubectl import Kubectl, needs_kubectl

pytestmark = needs_kubectl

DEPLOYMENT_TEXT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, labels: {team: a}}
spec:
  replicas: 1
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers:
      - name: app
        image: one
        env: [{name: A, value: b}, {name: C, value: d}]
        ports: [{containerPort: 53}, {containerPort: 53, protocol: UDP}]
"""

SERVICE_TEXT = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec:
  template:
    spec:
      containers: [{image: gcr.io/x/hello, env: [{name: A, value: b}]}]
"""


async def applied(kubectl: Kubectl, text: str, *words: str) -> str:
    (kubectl.folder / "it.yaml").write_text(text, encoding="utf-8")
    return await kubectl("apply", "--server-side", "-f", "it.yaml", *words)


async def test_apply_creates_an_object_and_owns_the_stated_fields(kubectl: Kubectl) -> None:
    assert "deployment.apps/d serverside-applied" in await applied(kubectl, DEPLOYMENT_TEXT)
    (entry,) = (await kubectl.cluster.get(DEPLOYMENT, "default", "d"))["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("kubectl", "Apply", "apps/v1")
    app = entry["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"app"}']
    assert app["f:image"] == {}
    assert set(app["f:env"]) == {'k:{"name":"A"}', 'k:{"name":"C"}'}
    assert set(app["f:ports"]) == {
        'k:{"containerPort":53,"protocol":"TCP"}',
        'k:{"containerPort":53,"protocol":"UDP"}',
    }
    assert "managedFields" not in await kubectl("get", "deployment", "d", "-o", "yaml")
    assert "f:replicas" in await kubectl("get", "deployment", "d", "-o", "yaml", "--show-managed-fields")


async def test_apply_again_changes_nothing(kubectl: Kubectl) -> None:
    await applied(kubectl, DEPLOYMENT_TEXT)
    before = await kubectl.cluster.get(DEPLOYMENT, "default", "d")
    await applied(kubectl, DEPLOYMENT_TEXT)
    assert await kubectl.cluster.get(DEPLOYMENT, "default", "d") == before


async def test_a_field_of_another_manager_is_a_conflict_until_forced(kubectl: Kubectl) -> None:
    await applied(kubectl, DEPLOYMENT_TEXT)
    await kubectl("scale", "deployment", "d", "--replicas=3")
    (kubectl.folder / "it.yaml").write_text(DEPLOYMENT_TEXT, encoding="utf-8")
    code, printed = await kubectl.tried("apply", "--server-side", "-f", "it.yaml")
    assert code == 1
    assert 'Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using apps/v1' in printed
    assert ".spec.replicas" in printed
    assert "--force-conflicts" in printed
    await kubectl("apply", "--server-side", "--force-conflicts", "-f", "it.yaml")
    assert await kubectl("get", "deployment", "d", "-o", "jsonpath={.spec.replicas}") == "1"


async def test_two_apply_managers_own_separate_list_elements(kubectl: Kubectl) -> None:
    await applied(kubectl, DEPLOYMENT_TEXT)
    other = DEPLOYMENT_TEXT.replace("env: [{name: A, value: b}, {name: C, value: d}]", "env: [{name: X, value: z}]")
    await applied(kubectl, other, "--field-manager=other")
    names = "jsonpath={.spec.template.spec.containers[0].env[*].name}"
    assert sorted((await kubectl("get", "deployment", "d", "-o", names)).split()) == ["A", "C", "X"]
    fewer = DEPLOYMENT_TEXT.replace(", {name: C, value: d}", "")
    await applied(kubectl, fewer)
    assert sorted((await kubectl("get", "deployment", "d", "-o", names)).split()) == ["A", "X"]
    await applied(kubectl, other.replace("        env: [{name: X, value: z}]\n", ""), "--field-manager=other")
    assert await kubectl("get", "deployment", "d", "-o", names) == "A"


async def test_a_dry_run_reports_the_result_and_stores_nothing(kubectl: Kubectl) -> None:
    printed = await applied(kubectl, DEPLOYMENT_TEXT, "--dry-run=server", "-o", "json")
    assert msgspec.json.decode(printed)["metadata"]["uid"]
    assert "NotFound" in (await kubectl.tried("get", "deployment", "d"))[1]
    await applied(kubectl, DEPLOYMENT_TEXT)
    changed = DEPLOYMENT_TEXT.replace("image: one", "image: two")
    printed = await applied(kubectl, changed, "--dry-run=server", "-o", "json")
    assert "two" in printed
    assert "image: one" in await kubectl("get", "deployment", "d", "-o", "yaml")
    code, printed = await kubectl.tried("diff", "--server-side", "-f", "it.yaml")
    assert code == 1, printed
    assert "+        image: two" in printed.replace("+      - image", "+        image")


async def test_custom_resources_follow_their_schema(kubectl: Kubectl) -> None:
    await applied(kubectl, SERVICE_TEXT)
    await kubectl("annotate", "ksvc", "hello", "why=not")
    await applied(kubectl, SERVICE_TEXT.replace("value: b", "value: c"))
    service = await kubectl.cluster.get(SERVING_SERVICE, "default", "hello")
    assert service["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "c"}]
    assert service["metadata"]["annotations"]["why"] == "not"
    managers = {
        managed_field["manager"]: managed_field["fieldsV1"] for managed_field in service["metadata"]["managedFields"]
    }
    assert set(managers) == {"kubectl", "kubectl-annotate"}
    assert managers["kubectl-annotate"]["f:metadata"]["f:annotations"]["f:why"] == {}


async def test_object_of_client_side_apply_is_migrated(kubectl: Kubectl) -> None:
    (kubectl.folder / "it.yaml").write_text(DEPLOYMENT_TEXT, encoding="utf-8")
    await kubectl("apply", "-f", "it.yaml")
    await applied(kubectl, DEPLOYMENT_TEXT.replace("image: one", "image: two"))
    deployment = await kubectl.cluster.get(DEPLOYMENT, "default", "d")
    # kubectl itself is the second manager, for the annotation of client-side apply.
    assert {managed_field["manager"] for managed_field in deployment["metadata"]["managedFields"]} == {
        "kubectl",
        "kubectl-last-applied",
    }
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "two"
    # The annotation is updated too, so that client-side apply works again.
    await applied(kubectl, DEPLOYMENT_TEXT.replace(", {name: C, value: d}", ""))
    await kubectl("apply", "-f", "it.yaml")
    deployment = await kubectl.cluster.get(DEPLOYMENT, "default", "d")
    assert [variable["name"] for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]] == ["A"]


async def test_object_without_owners_conflicts_until_forced(kubectl: Kubectl) -> None:
    body = {"metadata": {"name": "c", "namespace": "default"}, "data": {"a": "b", "c": "d"}}
    await kubectl.cluster.create(CONFIG_MAP, body)
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x}\n"
    (kubectl.folder / "it.yaml").write_text(text, encoding="utf-8")
    code, printed = await kubectl.tried("apply", "--server-side", "-f", "it.yaml")
    assert code == 1
    assert 'conflict with "before-first-apply" using v1: .data.a' in printed.replace(" at ", "")
    await kubectl("apply", "--server-side", "--force-conflicts", "-f", "it.yaml")
    assert (await kubectl.cluster.get(CONFIG_MAP, "default", "c"))["data"] == {"a": "x", "c": "d"}


async def test_a_list_element_without_its_key_is_rejected(kubectl: Kubectl) -> None:
    (kubectl.folder / "it.yaml").write_text(
        DEPLOYMENT_TEXT.replace("{name: C, value: d}", "{value: d}"), encoding="utf-8"
    )
    code, printed = await kubectl.tried("apply", "--server-side", "-f", "it.yaml")
    assert code == 1
    assert '.spec.template.spec.containers[name="app"].env' in printed
    assert "omits its key name" in printed


async def test_every_kind_accepts_server_side_apply(kubectl: Kubectl) -> None:
    texts = [
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: here}\n",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n",
        "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n",
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: h}\nspec: {hostnames: [a.example]}\n",
        SERVICE_TEXT,
    ]
    for text in texts:
        assert "serverside-applied" in await applied(kubectl, text, "--validate=false"), text
