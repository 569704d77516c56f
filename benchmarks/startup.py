"""Where the seconds of one command go: imports, loading, the checks and the scores; processor time, one thread."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

ROUNDS, TEXT = 3, "Leo put the key in the box. Question: Where did Leo put the key? Answer: in the"
IMPORTS = {
    "Python and torch": "torch",
    "transformers": "transformers.modeling_utils",
    "TransformerLens": "transformer_lens.model_bridge",
    "heta_lens": "heta_lens.cli.attribute heta_lens.api heta_lens.methods.registry heta_lens.plots.terminal",
}
WHOLE = "the whole command"


def measure(model: str) -> None:
    """Print the processor's seconds of every part, in this process."""
    seconds: dict[str, float] = {}

    def timed(part: str, work: Callable[[], Any]) -> Any:
        before = sum(seconds.values())
        result = work()
        seconds[part] = time.process_time() - before
        return result

    for part, module in IMPORTS.items():
        timed(part, lambda module=module: [*map(import_module, module.split())])
    import heta_lens
    from heta_lens.methods.registry import preset

    loaded = timed("loading the model", lambda: heta_lens.load_model(model))
    ids = loaded.to_tokens(TEXT)
    _, cache = timed("the run with a cache", lambda: loaded.run_with_cache(ids))
    prediction = timed("the check of the cache", lambda: heta_lens.Prediction.from_cache(cache, tokens=ids))
    found = timed("scores of `fast`", lambda: preset("fast")(prediction))
    timed("the list in the terminal", lambda: str(found))
    print(json.dumps(seconds))  # noqa: T201


def of(model: str) -> dict[str, float]:
    """Return medians of the parts, and of the command as a whole."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    rounds = []
    for _ in range(ROUNDS):
        command = [sys.executable, "-m", "benchmarks.startup", model]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=alone)
        parts = json.loads(done.stdout.splitlines()[-1])
        before = _children()
        command = [sys.executable, "-m", "heta_lens", "attribute", TEXT, "--model", model, "-m", "fast"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=alone)
        rounds.append(parts | {WHOLE: _children() - before})
    return {part: median(one[part] for one in rounds) for part in rounds[0]}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write() -> None:
    from benchmarks import pages  # not above: its imports are what is measured
    from benchmarks.models import SMOLLM2

    found = {"demo": of("demo"), "SmolLM2-135M": of(str(SMOLLM2))}
    parts = next(iter(found.values()))
    rows = [[part, *(f"{seconds[part]:.2f}" for seconds in found.values())] for part in parts]
    pages.write("startup", [pages.Table("", ["part", *(f"{model}, s" for model in found)], rows)])


if __name__ == "__main__":
    measure(*sys.argv[1:])
