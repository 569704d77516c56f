"""What inseq, lxt and context-cite do in an environment of their own, which has no heta_lens in it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.peers import Asked, Ran, Side, Work
from heta_lens._util.text import sentences

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv" / "oracles" / "bin" / "python"
UNKNOWN = 0  # the token that inseq puts in the place of others


@contextmanager
def elsewhere(model: Path, asked: Asked) -> Iterator[list[Work]]:
    """Yield the work of peers, who have loaded the model of this folder and wait."""
    ids, text = asked.ids[0].tolist(), asked.model.tokenizer.decode(asked.ids[0, 1:])
    spans = sentences(text)
    if len(spans) < 2:
        raise ValueError(f"context-cite needs a prompt of two sentences or more, not {text!r}: choose a longer one")
    given = {
        "model": str(model),
        "ids": ids,
        "target": asked.target,
        "text": text,
        "answer": asked.model.tokenizer.decode([*ids[1:], asked.target])[len(text) :],
        "sources": [text[start:stop] for start, stop in spans[:-1]],
        "query": text[spans[-1][0] :],
    }
    query = (len(asked.model.tokenizer(text[: spans[-1][0]]).input_ids), len(ids))  # in positions
    with ExitStack() as stack:

        def peer(name: str) -> Side:
            return stack.enter_context(worker(name, given))

        yield [
            Work(
                "inseq: integrated gradients, 50 steps",
                peer("integrated_gradients"),
                "integrated_gradients",
                {"steps": 50, "mask": UNKNOWN, "keep_bos": False},
                True,
            ),
            Work(
                "inseq: occlusion",
                peer("occlusion"),
                "leave_one_out",
                {"effect": "log_prob", "mask": UNKNOWN},
                True,
                scores=lambda attribution: attribution.scores.abs(),
            ),
            Work("lxt: AttnLRP", peer("attn_lrp"), "attn_lrp", {}, True, batches=(1,)),
            Work(
                "context-cite: 64 ablations",
                peer("context_cite"),
                "context_cite",
                {"query": (query,), "held_out": 0},
                False,  # what they keep of the prompt is tokenized again, what we keep is not
                scores=lambda attribution: torch.tensor(attribution.diagnostics["source_weights"]),
            ),
        ]


@contextmanager
def worker(name: str, given: dict[str, Any]) -> Iterator[Side]:
    """Yield a peer that answers requests with lines of JSON."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "given.json").write_text(json.dumps(given))
        command = [PYTHON, "-W", "ignore", "-m", "benchmarks.peers_worker", name, folder]
        pipe, threads = subprocess.PIPE, {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=others | threads) as process:

            def ask(what: str, batch: int) -> dict[str, Any]:
                assert process.stdin is not None and process.stdout is not None
                with suppress(BrokenPipeError):
                    process.stdin.write(json.dumps([what, batch]) + "\n")
                    process.stdin.flush()
                if not (answer := process.stdout.readline()):
                    raise RuntimeError(f"{name} ended without an answer: its message is above")
                return json.loads(answer)

            def run(batch: int) -> Ran:
                answer = ask("run", batch)
                return Ran(torch.tensor(answer["scores"]), answer["seconds"], answer["rows"])

            def peak(batch: int) -> float:
                return ask("peak", batch)["mib"]

            yield Side(run, peak)
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()


def versions_elsewhere() -> dict[str, str]:
    """Return the versions of the libraries in the other environment."""
    names = ("inseq", "lxt", "context_cite", "transformers", "torch")
    program = f"from importlib.metadata import version; print(*map(version, {names}))"
    printed = subprocess.run([PYTHON, "-c", program], check=True, capture_output=True, text=True).stdout
    return dict(zip(names, printed.split(), strict=True))
