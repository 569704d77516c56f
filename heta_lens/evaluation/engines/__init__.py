"""Engines: where the prompts of an evaluation are worked through.

`workers` is what a user asks for. `this_process` works through them one by one, with a model that is loaded already.
`worker_processes` and `ray_actors` start workers by a `worker_setup`, each with a model of its own; `scheduling` hands
out the prompts to them, the longest first, and replaces workers that die.
"""

from heta_lens.evaluation.engines.workers import Workers

__all__ = ["Workers"]
