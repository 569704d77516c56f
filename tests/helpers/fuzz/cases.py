"""Running cases: each from its own seed, in a forked process that a hang or a crash takes down alone."""

import os
import pickle
import random
import resource
import select
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import heta_lens
from helpers.fuzz.readers import READERS, Reader
from heta_lens._util.storage import OtherKind

SECONDS, MEMORY = 10, 2**30
FILES = {OSError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError}
OWN = {ValueError, TypeError, OtherKind, *FILES}
PACKAGE = str(Path(heta_lens.__file__).parent)
LONGEST = 1000


class Outcome(NamedTuple):
    reader: str
    seed: int
    kind: str
    """read, refused or FAULT"""
    told: str = ""


def outcome(name: str, seed: int) -> Outcome:
    """What a reader does with one case."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        draw = random.Random(f"{name} {seed}")
        path = reader.make(draw, Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader.use(path)
            kind, told = "read", ""
        except BaseException as error:
            fault = _fault(error, reader, folder)
            kind, told = ("FAULT", fault) if fault else ("refused", str(error))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        return (
            Outcome(name, seed, "FAULT", f"took {grown:,} bytes") if grown > MEMORY else Outcome(name, seed, kind, told)
        )


def _fault(error: BaseException, reader: Reader, folder: str) -> str:
    """Why this is no error of the library's own, in one sentence; empty, if it is one."""
    raised = traceback.extract_tb(error.__traceback__)[-1].filename
    wrong = {
        "foreign exception": type(error) not in OWN or not raised.startswith(PACKAGE),
        "more than a line": "\n" in str(error),
        "too long": len(str(error)) > LONGEST,
        "no file named": reader.names_file and folder not in str(error),
    }
    found = [what for what, is_so in wrong.items() if is_so]
    told = f"{', '.join(found)}: {type(error).__name__}: {str(error)[:200]!r} in {raised}"
    return told if found else ""


def run(cases: Sequence[tuple[str, int]]) -> Iterator[Outcome]:
    """All outcomes, in order."""
    at = 0
    while at < len(cases):
        for found in _in_child(cases[at:]):
            at += 1
            yield found


def _in_child(cases: Sequence[tuple[str, int]]) -> Iterator[Outcome]:
    """Outcomes until one ends the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(cases, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        for name, seed in cases:
            ready, _, _ = select.select([pipe], [], [], SECONDS)
            size = pipe.read(4) if ready else b""
            if len(size) < 4:
                if not ready:
                    os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                yield Outcome(name, seed, "FAULT", f"ended with status {status}" if ready else f"hung for {SECONDS} s")
                return
            yield pickle.loads(pipe.read(int.from_bytes(size, "little")))
    os.waitpid(child, 0)


def _work(cases: Sequence[tuple[str, int]], writing: int) -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
        if pages:
            limit = pages * resource.getpagesize() + MEMORY + 2**28
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for name, seed in cases:
                told = pickle.dumps(outcome(name, seed))
                pipe.write(len(told).to_bytes(4, "little") + told)
        os._exit(0)
    finally:  # without what the parent would do at its end
        traceback.print_exc()
        os._exit(1)
