"""Pack static programs as OCI archives, one image each, as ``ko`` does.

    python -m bench.parts.static_image FOLDER OUT REPOSITORY

Each program of ``FOLDER`` becomes ``OUT/NAME.tar`` with the image ``REPOSITORY/NAME:latest``, which runs as user 65532.
"""

import sys
from pathlib import Path

from tests.integration.image_stage import folder_of, oci_archive, tar_of

_USERS = b"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"


def pack(program: Path, out: Path, repository: str) -> None:
    """Write one archive."""
    path = f"ko-app/{program.name}"
    folders = [folder_of("etc"), folder_of("ko-app"), folder_of("tmp", 0o1777)]
    layer = tar_of([*folders, ("etc/passwd", _USERS, 0o644), (path, program.read_bytes(), 0o755)])
    config = {"User": "65532", "Entrypoint": [f"/{path}"], "Env": ["PATH=/ko-app"]}
    oci_archive(out / f"{program.name}.tar", [layer], name=f"{repository}/{program.name}:latest", config=config)


def main(folder: str, out: str, repository: str) -> None:
    """Write all archives."""
    for program in sorted(Path(folder).iterdir()):
        pack(program, Path(out), repository)


if __name__ == "__main__":
    main(*sys.argv[1:])
