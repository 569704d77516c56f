"""Writing files so that what was there before is never lost: a file is replaced whole, or stays as it was."""

import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EBADF, EINVAL, ENOTSUP, EPERM
from os import PathLike
from pathlib import Path

VIEWS = {".html", ".htm", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".tex", ".csv", ".json", ".jsonl", ".txt"}
NO_FOLDER_SYNC = {EACCES, EBADF, EINVAL, ENOTSUP, EPERM}  # of folders that cannot be opened or synced; nothing is lost


def check_no_view(path: str | PathLike[str], instead: str) -> None:
    """Refuse the name of a picture, a page or a table for a file of tensors; ``instead`` is what writes those."""
    if Path(path).suffix.lower() in VIEWS:
        name = Path(path).name
        raise ValueError(f"{name} would hold tensors: name it .safetensors, or write what it shows by {instead}")


def write_atomically(path: str | PathLike[str], data: bytes | str) -> Path:
    """Write a file so that its path has either all of ``data`` (text as UTF-8) or what it had before.

    The data goes to a temporary file in the same folder, is synced to disk, and then takes the file's name. A new file
    has the permissions that the umask gives, an existing one keeps its own; a link stays, and the file it leads to is
    written. What is not a regular file (a pipe, ``/dev/stdout``) is written to directly.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))
    with _naming(path):
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    return Path(path)


def append_whole(path: str | PathLike[str], data: bytes) -> None:
    """Add to the end of a file either all of ``data``, which is on the disk when this returns, or nothing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
    with _naming(path):
        new = not Path(path).exists()
        descriptor = os.open(path, flags, 0o666)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        if new:
            _sync_folder(Path(path).parent)


@contextmanager
def _naming(path: str | PathLike[str]) -> Iterator[None]:
    """Say of which file it is that the system refuses something, and not of a temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, f"cannot write {path}: {error.strerror or error}") from error


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however much of it the system takes at once, and see it on the disk."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """See the names in a folder on the disk, where folders can be synced at all."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def check_distinct(paths: Mapping[str, str | PathLike[str] | None]) -> None:
    """Refuse two of these (by the options that give them) that are one file, so that one would overwrite the other.

    Names that differ only in case are refused too: not every file system tells them apart.
    """
    first: dict[object, str] = {}
    for name, path in paths.items():
        if path is None or _is_stream(Path(path)):
            continue
        for key in _identities(Path(path)):
            other = first.setdefault(key, name)
            if other != name:
                raise ValueError(f"{other} {paths[other]} and {name} {path} are the same file: give two files")


def _replace(target: Path, content: bytes) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(EACCES, "the file is read-only")
    temporary = target.with_name(f".heta-lens-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
        if target.exists():
            _copy_permissions(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _copy_permissions(source: Path, to: Path) -> None:
    before = source.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):  # only root gives files away
            os.chown(to, before.st_uid, before.st_gid)
    os.chmod(to, stat.S_IMODE(before.st_mode))


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _identities(path: Path) -> list[object]:
    """What two paths of one file share: where they lead, or the file that is there already."""
    leads = unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
    identities: list[object] = [leads]
    with suppress(OSError):
        there = path.stat()
        identities.append((there.st_dev, there.st_ino))
    return identities
