"""Reads entries of tar files that others have made: their extended headers are bounded."""

import tarfile

_LONG_HEADERS = frozenset(
    (
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    )
)
# Longest header of an entry, with its names and attributes: tarfile reads one into memory. Go's archive/tar takes 1 MiB too.
_LONG_HEADER_BYTES_MAX = 2**20


class BoundedEntry(tarfile.TarInfo):
    """An entry of a tar file whose extended headers are bounded before they are read."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size > _LONG_HEADER_BYTES_MAX and self.type in _LONG_HEADERS:
            raise tarfile.ReadError(f"a header of {self.size} bytes; expected at most {_LONG_HEADER_BYTES_MAX}")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return] # the hook for each entry
