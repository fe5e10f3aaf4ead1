import base64
import json

import yaml

from serving.home.apiserver.kubeconfig import kubeconfig


def test_the_file_is_yaml_and_json() -> None:
    text = kubeconfig("http://127.0.0.1:6080", "t0k-_en")
    assert yaml.safe_load(text) == json.loads(text)


def test_the_token_is_the_users_and_not_in_the_url() -> None:
    content = json.loads(kubeconfig("https://127.0.0.1:6080/", "abc", authority="PEM"))
    (cluster,) = content["clusters"]
    assert cluster["cluster"] == {
        "server": "https://127.0.0.1:6080",
        "certificate-authority-data": base64.b64encode(b"PEM").decode(),
    }
    assert content["users"][0]["user"] == {"token": "abc"}
