"""Run folders written by hand, so that every number of a report is known beforehand."""

import csv
import json

import numpy as np
import yaml

from fedhet.config.load import build_config

CLIENTS = 4


def round_line(number, accuracy, loss=0.5, **more):
    """A line of ``rounds.jsonl``; without a loss both replies overflowed."""
    line = {"round": number, "test_accuracy_mean": accuracy, "seconds": 1.0, "train_flops": 1e12,
            "sampled": 2, "offline": 0, "uplink_floats": 100, "downlink_floats": 60,
            "val_accuracy_mean": 1.0, "lost": [], "sha256": "ab", "train_loss": loss}  # fmt: skip
    line |= {f"{way}_bytes": 400 for way in ("uplink", "downlink")}
    line |= {f"{way}_message_bytes": 500 for way in ("uplink", "downlink")}
    line |= {f"test_accuracy_{kind}": accuracy for kind in ("std", "p10", "min")}
    reason = "metric 'train_loss' is nan, not finite"
    failures = [{"client": str(k), "reason": reason} for k in range(2) if loss is None]
    line |= {"replied": 2 - len(failures), "failed": len(failures), "failures": failures}
    return json.dumps(line | more) + "\n"


def write_clients(folder, tests):
    """``clients.csv``: the clients' accuracies after each round; the first is never sampled."""
    lines = ["round,client,model,generation,test_accuracy,val_accuracy,other"]
    for r, row in enumerate(tests, start=1):
        lines += [f"{r},{k},cnn-1,{r if k else 0},{value},1.0," for k, value in enumerate(row)]
    (folder / "clients.csv").write_text("\n".join(lines) + "\n")


def write_summary(folder, **keys):
    (folder / "summary.json").write_text(json.dumps({"reason": "", "run_sha256": "ab"} | keys))


def write_run(path, config, lines=(), tests=(), **summary):
    """A run folder of these lines of ``rounds.jsonl`` and accuracies, ended if it has a summary."""
    (path / "checkpoint").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    identity = {"experiment": "x", "config": config}
    (path / "checkpoint" / "run.json").write_text(json.dumps(identity))
    if lines:
        (path / "rounds.jsonl").write_text("".join(lines))
    if tests:
        write_clients(path, tests)
    if summary:
        write_summary(path, **summary)
    return path


def line(number, **changes):
    """A line of ``rounds.jsonl`` whose accuracy, seconds and bytes follow from its number."""
    own = {"seconds": 2.0, "uplink_bytes": 1000, "downlink_bytes": 3000}
    return round_line(number, 10.0 * number, **own | changes)


def failure(client, reason):
    return {"client": client, "reason": reason}


def scores(*rows):
    """``clients.csv``: round, client and accuracy."""
    head = "round,client,model,generation,test_accuracy,val_accuracy\n"
    return head + "".join(f"{r},{client},cnn-1,{r},{value},\n" for r, client, value in rows)


def begin(path, rounds=4, **changes):
    """A run folder in which no round has ended."""
    write_run(path, build_config({"clients": 2, "rounds": rounds, **changes}).flat())
    (path / "partition.csv").write_text("client,a,b\n0,3,0\n1,2,2\n")
    return path


def end(path, rounds, status="completed", reason=""):
    mean = 10.0 * rounds
    write_summary(path, status=status, reason=reason, rounds=rounds, test_accuracy_mean=mean)


def append(path, text):
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def make_run(
    folder, method, seed, tests, *, name="", flops=1e12, status="completed", loss=0.5, **changes
):
    """A completed run: ``tests`` are the clients' accuracies after each round."""
    name = name or f"{method}-s{seed}"
    keys = {"method": method, "dataset": "cifar100", "clients": CLIENTS, "fraction": 0.5,
            "seed": seed, "rounds": len(tests), "name": name, "out": "/somewhere/else",
            **{key.replace("_", "-"): value for key, value in changes.items()}}  # fmt: skip
    lines = [
        round_line(r, np.mean(row), loss, train_flops=flops, sha256=sha256_of(method, seed))
        for r, row in enumerate(tests, start=1)
    ]
    path = write_run(
        folder / name, build_config(keys).flat(), lines, tests, method=method, reason="not finite",
        status=status, best_validation_test_accuracy_mean=5.0,
        wall_seconds=7200.0, failures=[], rounds=len(tests), run_sha256=sha256_of(method, seed),
        test_accuracy_mean=np.mean(tests[-1]),
    )  # fmt: skip
    (path / "partition.csv").write_text("client,a,b\n" + "".join(f"{k},3,0\n" for k in range(4)))
    return path


def sha256_of(method, seed):
    return f"{method}{seed}".encode().hex()


def rows_of(out, kind):
    """The rows of a report's table as they stand in its CSV file, by method."""
    (path,) = (out / "tables").glob(f"{kind}-*.csv")
    with path.open() as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def edit(path, old, new):
    """Replace a text, once, that must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
