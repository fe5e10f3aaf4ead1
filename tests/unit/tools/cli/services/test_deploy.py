from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.tools.cli.services.deploy import placed, port_advice


def test_service_name_and_folder_have_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Shop").mkdir()
    monkeypatch.chdir(tmp_path / "Shop")
    assert placed(None, None, is_image=False) == ("shop", Path())
    assert placed("../Shop/", None, is_image=False) == ("shop", Path("../Shop"))
    assert placed("web", None, is_image=True) == ("web", Path())
    assert placed("web", tmp_path, is_image=False) == ("web", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "is_image", "message"),
    [
        (".", Path("shop"), False, "the name comes before the folder"),
        ("./missing", None, False, "missing is missing: expected a folder"),
        (None, None, True, "--image needs a name"),
        ("/", None, False, "a service's name before the folder"),
    ],
)
def test_invalid_deploy_arguments_are_reported(
    name: str | None, folder: Path | None, is_image: bool, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, InvalidValue)) as ended:
        placed(name, folder, is_image=is_image)
    assert message in f"{capsys.readouterr().err}{ended.value}"


def test_fixed_port_is_not_advised_without_pod_networks() -> None:
    pod = {"name": "shop-00002-deployment-x"}
    event = {"reason": "NoOwnNetwork", "involvedObject": pod, "message": "the app must listen on $PORT: ..."}
    assert port_advice([event], "shop", 8123) == "the app must listen on $PORT: ..."
    assert "--fixed-port 8123 gives it its own port" in port_advice([event], "sho", 8123)
    assert "--fixed-port PORT gives it its own port" in port_advice([], "shop", 0)
