"""Seconds per round when clients do next to nothing: what the engine itself costs.

Every client has three images of CNN-1 (10.5 MB of state), so a message is: load the state, one
SGD step on two images, evaluate one image, save the state. Both settings run through `fedhet run`.
A round of N = 1000 writes 105 MB that stay: with `--state-dir` in memory (/dev/shm) the disk is
left out.

    python -m benchmarks.engine_overhead [--state-dir FOLDER]
"""

import argparse

from benchmarks.common import emit, median, run_fedhet

CASES = {"N=10, C=100 %": (10, 1.0, 0.2), "N=1000, C=1 %": (1000, 0.01, 0.3)}
ROUNDS, WARM_UP = 25, 5


def main() -> None:
    """Measure and print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", default="", help="where states lie; default: the run folder")
    where = parser.parse_args().state_dir
    for name, (clients, fraction, target) in CASES.items():
        overrides = [
            "method=fedssa", f"dataset=synthetic:{clients * 6}", "split=1:0:1", "models=cnn-1",
            f"clients={clients}", f"fraction={fraction}", f"rounds={ROUNDS}", "local-epochs=1",
            "evaluate-all=false", "start-timeout=600", "keep-state=false",
        ]  # fmt: skip
        if where:
            overrides.append(f"state-dir={where}")
        seconds = [line["seconds"] for line in run_fedhet(overrides)][WARM_UP:]
        emit(
            "engine_overhead", setting=name, rounds=len(seconds),
            seconds_per_round=median(seconds), target=target, state_dir=where,
        )  # fmt: skip


if __name__ == "__main__":
    main()
