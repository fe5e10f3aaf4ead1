"""Each definition in ``config`` has been accepted by a real API server, as recorded."""

import json
from pathlib import Path

import pytest
import yaml

from serving.home.schemas.crds import crd_folder
from tests.conformance.record_definitions import ACCEPTED, DATA, DEFINITIONS, MISTAKES, digest

RECORD = json.loads(DATA.read_text())
AGAIN = "changed since the record: python -m tests.conformance.record_definitions KUBECONFIG (any Kubernetes)"


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_definition_was_accepted_by_a_real_api_server(path: Path) -> None:
    assert RECORD["definitions"].get(path.name) == {"sha256": digest(path.read_text()), "answer": ACCEPTED}, AGAIN


def test_record_lists_only_existing_definitions() -> None:
    assert sorted(RECORD["definitions"]) == [path.name for path in DEFINITIONS]


def test_record_contains_a_rejection_of_each_mistake() -> None:
    assert set(RECORD["mistakes"]) == set(MISTAKES)
    assert ACCEPTED not in RECORD["mistakes"].values()


def test_definition_digest_ignores_descriptions_but_not_rules() -> None:
    path = crd_folder() / "domainmapping.yaml"
    text = path.read_text()
    whole = yaml.safe_load(text)
    schema = whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["description"] = "another"
    assert digest(f"# a comment\n{yaml.safe_dump(whole)}") == digest(text)
    schema["x-kubernetes-validations"] = [{"rule": "true"}]
    assert digest(yaml.safe_dump(whole)) != digest(text)
