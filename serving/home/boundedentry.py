"""Reads entries of untrusted tar files, with a limit on extended headers."""

import tarfile

_LONG_HEADERS = frozenset(
    (
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    )
)
# Longest extended header of an entry, which tarfile reads into memory. Go's archive/tar also accepts 1 MiB.
_LONG_HEADER_BYTES_MAX = 2**20


class BoundedEntry(tarfile.TarInfo):
    """A tar entry whose extended headers are limited before they are read."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size > _LONG_HEADER_BYTES_MAX and self.type in _LONG_HEADERS:
            raise tarfile.ReadError(f"a header of {self.size} bytes; expected at most {_LONG_HEADER_BYTES_MAX}")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return] # the hook for each entry
