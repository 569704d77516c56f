"""One writer at a time: a second is refused with the name of the first, and nothing of a dead one has to be removed."""

import errno
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from heta_lens.evaluation import run_folder
from heta_lens.evaluation.run_folder import HOLDER, SOFT_LOCK, FileLock, Holder, locked

HOLD = """
import sys, time
from pathlib import Path
from heta_lens.evaluation.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


WITHOUT_LOCKS = """
import errno, filelock
def without_locks(*_, **__):
    raise OSError(errno.ENOLCK, "")
filelock.FileLock.acquire = without_locks
"""


def without_locks(*_: object, **__: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_second_writer_is_told_who_the_first_is_and_since_when(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match=rf"\(process {os.getpid()} on {platform.node()}, since 20"):
        locked(tmp_path).__enter__()
    assert not (tmp_path / HOLDER).exists()
    with locked(tmp_path):
        pass


def test_an_error_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        pass


def test_what_a_dead_process_left_is_not_taken_for_the_writer(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = json.dumps(vars(Holder(dead.pid, platform.node(), "then")))
    (tmp_path / HOLDER).write_text(left)
    lock = FileLock(tmp_path / run_folder.LOCK)
    lock.acquire()
    mine = json.dumps(vars(Holder.me()))
    late = threading.Timer(0.3, lambda: (tmp_path / HOLDER).write_text(mine))  # it has not said so yet
    late.start()
    with pytest.raises(ValueError, match=rf"process {os.getpid()} on"):
        locked(tmp_path).__enter__()
    late.join()
    lock.release()


def test_a_writer_that_cannot_say_who_it_is_still_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "PATIENCE", 0.05)
    monkeypatch.setattr(run_folder, "write_atomically", without_locks)
    with locked(tmp_path), pytest.raises(ValueError, match="another evaluation is writing into"):
        locked(tmp_path).__enter__()


def test_a_writer_on_another_machine_counts_as_alive() -> None:
    assert Holder(2**22 + 5, "elsewhere", "then").may_live
    assert not Holder(2**22 + 5, platform.node(), "then").may_live


@pytest.mark.thorough
@pytest.mark.slow
def test_on_a_file_system_without_locks_a_file_stands_for_one_and_is_taken_over_from_the_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileLock, "acquire", without_locks)
    mine = locked(tmp_path)
    with pytest.warns(UserWarning, match=r"has no locks: \.lock-file stands for one"):
        mine.__enter__()
    assert (tmp_path / SOFT_LOCK).exists()
    with pytest.warns(UserWarning, match="has no locks"), pytest.raises(ValueError, match="is writing into"):
        locked(tmp_path).__enter__()
    mine.__exit__(None, None, None)
    assert not (tmp_path / SOFT_LOCK).exists()

    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_LOCKS + HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with (
            pytest.warns(UserWarning, match="has no locks"),
            pytest.raises(ValueError, match=f"process {first.pid} on"),
        ):
            locked(tmp_path).__enter__()
        first.kill()
    assert (tmp_path / SOFT_LOCK).exists()
    time.sleep(run_folder.PATIENCE)
    with pytest.warns(UserWarning, match="has no locks"), locked(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["process"] == os.getpid()
