"""``config/`` and the overlays of the docs on a real server, as a GitOps tool applies them with kubectl."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from serving.cli.client.tree import tree_folder
from tests.cluster_e2e.server import is_real
from tests.unit.config.test_tree import documented_overlays, overlaid

pytestmark = [
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


def test_a_second_apply_and_a_diff_are_empty() -> None:
    """It takes 5 s: each kubectl applies 60 objects."""
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-o", "yaml", "-k")
    first, second = (kubectl(*apply, str(tree_folder())) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    versions = [
        {
            (one["kind"], one["metadata"]["name"]): one["metadata"]["generation"]
            for one in found
            if "generation" in one["metadata"]
        }
        for found in (yaml.safe_load(done.stdout)["items"] for done in (first, second))
    ]
    assert versions[0] == versions[1]
    diff = kubectl("diff", "--server-side", "--field-manager=gitops", "-k", str(tree_folder()))
    assert (diff.returncode, diff.stdout) == (0, "")


@pytest.mark.parametrize("overlay", documented_overlays())
def test_an_overlay_of_the_docs_is_accepted(overlay: str, tmp_path: Path) -> None:
    """Kinds that others define are left out where the server does not have them."""
    served = kubectl("api-versions").stdout.split()
    objects = [one for one in overlaid(tmp_path, overlay).values() if one["apiVersion"] in served]
    done = kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--field-manager=gitops", "-f", "-"),
        text=yaml.safe_dump_all(objects),
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)
