import json

import pytest
import yaml

from serving.cluster.api.kubeconfig import kubeconfig


def test_the_file_is_yaml_and_json() -> None:
    text = kubeconfig("http://127.0.0.1:6080", "t0k-_en")
    assert yaml.safe_load(text) == json.loads(text)


def test_the_token_stands_in_the_path_for_clients_that_keep_it_to_themselves() -> None:
    content = json.loads(kubeconfig("http://127.0.0.1:6080/", "abc"))
    assert content["clusters"][0]["cluster"]["server"] == "http://127.0.0.1:6080/token/abc"
    assert content["users"][0]["user"] == {"token": "abc"}


@pytest.mark.parametrize("token", ["", "a/b", "a b", "é"])
def test_a_token_that_cannot_stand_in_a_path_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="it stands in a path"):
        kubeconfig("http://127.0.0.1:6080", token)
