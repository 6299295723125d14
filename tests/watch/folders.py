"""Run folders and sweeps written by hand, as a run and a sweep write them."""

from pathlib import Path
from typing import Any

from helpers.written_runs import round_line, write_run, write_summary

from fedhet.config.load import build_config


def line(number: int, **changes: Any) -> str:
    """A line of ``rounds.jsonl``."""
    own = {"seconds": 2.0, "uplink_bytes": 1000, "downlink_bytes": 3000}
    return round_line(number, 10.0 * number, **own | changes)


def failure(client: str, reason: str) -> dict[str, str]:
    return {"client": client, "reason": reason}


def scores(*rows: tuple[int, str, float]) -> str:
    """``clients.csv``: round, client and accuracy."""
    head = "round,client,model,generation,test_accuracy,val_accuracy\n"
    return head + "".join(f"{r},{client},cnn-1,{r},{value},\n" for r, client, value in rows)


def begin(path: Path, rounds: int = 4, **changes: Any) -> Path:
    """A run folder in which no round has ended."""
    config = build_config({"method": "fedssa", "clients": 2, "rounds": rounds, **changes}).flat()
    write_run(path, config)
    (path / "partition.csv").write_text("client,a,b\n0,3,0\n1,2,2\n")
    return path


def end(path: Path, rounds: int, status: str = "completed", reason: str = "") -> None:
    """Its summary."""
    write_summary(
        path, status=status, reason=reason, rounds=rounds, test_accuracy_mean=10.0 * rounds
    )


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
