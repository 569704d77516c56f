"""The same work by other libraries and by heta_lens: seconds, forwards, memory, and how far the scores differ.

`python -m benchmarks.peers` writes PEERS.md. `here` has what peers do in this process, `elsewhere` asks those that need
an environment of their own (`make .venv/oracles/ready`), which run `elsewhere_worker` in it. `work` is what both share.
"""
