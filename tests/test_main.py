"""The command as a process: an interrupt ends it without a traceback."""

import signal
import subprocess
import sys
import time

import pytest

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
