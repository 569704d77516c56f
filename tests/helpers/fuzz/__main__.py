"""Put damaged files to every reader, and count what comes of it."""

import argparse
from collections import Counter
from collections.abc import Sequence

from helpers.fuzz.cases import Outcome, run
from helpers.fuzz.readers import READERS


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many in all (10000)")
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed; the others count up from it (0)")
    parser.add_argument("--only", choices=[*READERS], help="one reader; with --cases 1 --seed N, one case again")
    asked = parser.parse_args(given)
    names = [asked.only] if asked.only else [*READERS]
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    faults: list[Outcome] = []
    cases = [(names[at % len(names)], asked.seed + at // len(names)) for at in range(asked.cases)]
    for found in run(cases):
        counts[found.reader][found.kind] += 1
        faults += [found] if found.kind == "FAULT" else []
    print(f"{'reader':20} {'cases':>6} {'read':>6} {'refused':>8} {'faults':>7}")  # noqa: T201
    for name, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(f"{name:20} {count.total():6} {count['read']:6} {count['refused']:8} {count['FAULT']:7}")  # noqa: T201
    for fault in faults[:30]:
        print(f"{fault.reader} --seed {fault.seed}: {fault.told}")  # noqa: T201
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
