"""The command as a process: it prints to any terminal, and an interrupt ends it without a traceback."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heta_lens.__main__ import _interrupt

TEXT = "Mia put the key in the drawer. Question: Where did Mia put the key? Answer: in the"


@pytest.mark.sample(quick=0, test=1)
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.5, 3.0, 5.0])
def test_an_interrupt_ends_it_without_a_traceback(seconds: float) -> None:
    def listen() -> None:  # which a process that was started in the background does not
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, "-m", "heta_lens", "attribute", TEXT, "-o", "probes=1000"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    ) as run:
        time.sleep(seconds)
        run.send_signal(signal.SIGINT)
        try:
            _, errors = run.communicate(timeout=60)
        finally:
            run.kill()
    assert "Traceback" not in errors
    assert run.returncode == 130


def test_an_interrupt_ends_an_import_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: ended.append(code))
    monkeypatch.syspath_prepend(tmp_path)
    ended: list[int] = []
    (tmp_path / "imported_and_interrupted.py").write_text(
        "import sys\nfrom heta_lens.__main__ import _interrupt\ntry:\n    _interrupt(2, sys._getframe())\n"
        "except KeyboardInterrupt:\n    pass\n"
    )
    importlib.import_module("imported_and_interrupted")
    assert ended[:1] == [130]
    before = [*ended]
    with pytest.raises(KeyboardInterrupt):
        _interrupt(2, None)
    assert ended == before, "elsewhere Python's own exception is raised"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_terminal_that_does_not_know_its_width_is_printed_to() -> None:
    command = [sys.executable, "-m", "heta_lens", "attribute", TEXT, "-m", "random"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "0"})
    assert "position" in run.stdout
