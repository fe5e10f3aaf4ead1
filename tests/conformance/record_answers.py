"""Records a real API server's answers again: ``python -m tests.conformance.record_answers KUBECONFIG``.

``data/manifests.jsonl`` has manifests that are right but for one field, and the code, reason and fields of the answer.
``data/defaults.jsonl`` has right manifests, as short as users write them, and what the server fills in beside
``metadata`` and ``status``. The script sends every manifest as a dry run, after the definitions of ``config/crd``, and
writes the answers back. A new case is a line with its name, resource and manifest. The files were recorded from
Kubernetes 1.36.2.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from serving.home.schemas.crds import crd_folder
from serving.net.cluster.kinds import KINDS, Kind
from serving.net.cluster.sessions import library_client

Json = Any

MANIFESTS = Path(__file__).with_name("data") / "manifests.jsonl"
DEFAULTS = Path(__file__).with_name("data") / "defaults.jsonl"
BY_RESOURCE = {kind.resource: kind for kind in KINDS}
_NAMESPACE = "manifests"
_HEAD = frozenset({"apiVersion", "kind", "metadata", "status"})
# The server chooses these.
_CHOSEN = ("clusterIP", "clusterIPs")
# A text in the files, and what is sent for it: more than all annotations may have.
_TOO_LONG = ("<262144 x>", "x" * 262_144)


def manifest_of(case: Json) -> Json:
    """The manifest of a case as it is sent."""
    return json.loads(json.dumps(case["manifest"]).replace(*_TOO_LONG))


def filled_in(answer: Json) -> Json:
    """The parts of an object that do not depend on the server or the time."""
    parts = {key: value for key, value in answer.items() if key not in _HEAD}
    spec = parts.get("spec")
    if answer["kind"] == "Service" and isinstance(spec, dict):
        parts["spec"] = {key: value for key, value in spec.items() if key not in _CHOSEN or value in ("None", ["None"])}
        for port in parts["spec"].get("ports") or ():
            port.pop("nodePort", None)
    return parts


def _refusal(code: int, answer: Json) -> Json:
    causes = (answer.get("details") or {}).get("causes") or () if code >= 400 else ()
    # "<nil>" is no field: it says that rules were skipped because the schema does not hold.
    fields = sorted({cause.get("field", "") for cause in causes} - {"<nil>"})
    return {"code": code, "reason": answer.get("reason", "") if code >= 400 else "", "fields": fields}


def _defaults(code: int, answer: Json) -> Json:
    if code >= 400:
        raise SystemExit(answer.get("message"))
    return {"answer": filled_in(answer)}


def _cases(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write(path: Path, cases: list[Json]) -> None:
    path.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases), encoding="utf-8")
    sys.stdout.write(f"{len(cases)} answers in {path}\n")


async def record(kubeconfig: str) -> None:
    """Send every manifest and write the answers."""
    async with await library_client(kubeconfig) as client:

        async def send(path: str, body: Json, **query: str) -> tuple[int, Json]:
            call = await client.param_serialize(
                "POST",
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await client.call_api(*call)
            return answer.status, json.loads(await answer.read() or b"{}")

        for file in sorted(crd_folder().glob("*.yaml")):
            await send("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(file.read_text()))
        await send("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        # Without a controller-manager, nothing makes the account that a pod needs.
        await send(f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        for path, result in ((MANIFESTS, _refusal), (DEFAULTS, _defaults)):
            recorded = []
            for case in _cases(path):
                answer = await send(_path(BY_RESOURCE[case["resource"]]), manifest_of(case), dryRun="All")
                recorded.append({**case, **result(*answer)})
            _write(path, recorded)


def _path(kind: Kind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    return f"{root}/namespaces/{_NAMESPACE}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
