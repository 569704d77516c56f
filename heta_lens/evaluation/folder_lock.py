"""One writer at a time for a folder of results; a second is refused, with the name of the first.

The operating system releases the lock with the process. On a file system without locks, a file stands for it, which is
taken over if its process, on the same machine, has ended; nobody can know that of a process on another machine.
"""

import json
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from errno import ENOLCK, ENOSYS, ENOTSUP
from pathlib import Path

import psutil
from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from heta_lens._util.file_writing import write_atomically

LOCK, SOFT_LOCK, HOLDER = ".lock", ".lock-file", ".lock-holder"
NO_LOCKS = {ENOLCK, ENOTSUP, ENOSYS}  # of file systems that have none
PATIENCE = 2.0  # seconds in which a process that has just taken a lock says who it is


@dataclass(frozen=True)
class Holder:
    """Who is writing."""

    process: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"

    @property
    def may_live(self) -> bool:
        return self.host != platform.node() or psutil.pid_exists(self.process)

    @classmethod
    def me(cls) -> "Holder":
        return cls(os.getpid(), platform.node(), datetime.now().astimezone().isoformat(" ", "seconds"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder."""
    with writing_into(folder):
        lock = _acquired(folder)
    try:
        with suppress(OSError):  # this is only what a refusal quotes
            write_atomically(folder / HOLDER, json.dumps(asdict(Holder.me())))
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER).unlink()
        lock.release()


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Name the folder in an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, f"cannot write into {folder}: {error.strerror or error}") from error


def _acquired(folder: Path) -> BaseFileLock:
    try:
        return _taken(FileLock(folder / LOCK), folder)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    warnings.warn(
        f"the file system of {folder} has no locks: {SOFT_LOCK} stands for one. If its process ends on another machine "
        "without removing it, remove it yourself",
        stacklevel=2,
    )
    return _taken(SoftFileLock(folder / SOFT_LOCK), folder)


def _taken(lock: BaseFileLock, folder: Path) -> BaseFileLock:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        holder = _holder(folder)
        who = f" ({holder})" if holder else ""
        raise ValueError(
            f"another evaluation{who} is writing into {folder}: wait until it has ended, or give another folder"
        ) from None
    return lock


def _holder(folder: Path) -> Holder | None:
    """Who has the lock, as soon as it says so; what an earlier process left there does not count."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError, ValueError, TypeError):
            holder = Holder(**json.loads((folder / HOLDER).read_text(encoding="utf-8")))
            if holder.may_live:
                return holder
        time.sleep(0.01)
    return None
