"""The same as the page in lines: for a pipe, a screen reader, a terminal without colours."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from fedhet.watch.view import IDLE, RunView, SweepView, word

POLL = 1.0  # seconds between looks
PATIENCE = 3  # looks after which a run that nobody writes counts as broken off


def follow(view: RunView | SweepView) -> Iterator[str]:
    """Yield lines as they come, until the run or all runs are over."""
    told: dict[str, Any] = {"rounds": 0, "rows": {}}
    idle = 0
    while True:
        look = view.look()
        if "status" not in told:
            yield f"{look['name']}: {look['title']}"
        if look["of"] < told["rounds"]:
            told["rounds"] = 0
            yield "it began anew"
        yield from _rounds(look, told["rounds"])
        yield from _changed(look, told["rows"])
        if look["of"] > told["rounds"] and (left := dict(look["facts"]).get("time left")):
            yield f"time left: {left}"
        told["rounds"] = look["of"]
        now = (look["status"], look["says"], *look["damage"])
        idle = idle + 1 if look["status"] == IDLE else 0
        over = look["over"] and (look["status"] != IDLE or idle >= PATIENCE)
        if over or (now != told.get("status") and not look["over"]):
            yield ": ".join(filter(None, now[:2]))
            yield from (f"cannot be read: {problem}" for problem in look["damage"])
        told["status"] = now
        if over:
            yield ", ".join(f"{name}: {text}" for name, text in look["facts"])
            yield from _clients(look)
            return
        time.sleep(POLL)


def _rounds(look: Mapping[str, Any], told: int) -> Iterator[str]:
    """A line for every new round and, below it, one for every client that failed in it."""
    wanted = dict(look["facts"]).get("round", "").partition(" of ")[2]
    failures = [
        row for table in look["tables"] if table["name"] == "failures" for row in table["rows"]
    ]
    for row in look["rounds"]:
        if row[0] > told:
            pairs = zip(look["columns"][1:], row[1:], strict=True)
            said = ", ".join(f"{title} {word(v, kind)}" for (title, kind), v in pairs if title)
            yield f"round {row[0]} of {wanted}: {said}"
            yield from (
                f"  client {who} failed: {why}" for at, who, why in failures if at == row[0]
            )


def _changed(look: Mapping[str, Any], told: dict[str, Any]) -> Iterator[str]:
    """A line for every cell or site whose state has changed."""
    for table in look["tables"]:
        if table["name"] in {"cells", "sites"}:
            state = 2 if table["name"] == "cells" else 1
            for row in table["rows"]:
                if told.get(row[0]) != row[state]:
                    told[row[0]] = row[state]
                    yield _said(table, row)


def _clients(look: Mapping[str, Any]) -> Iterator[str]:
    """The table of clients, a line a row, every figure with its name."""
    for table in look["tables"]:
        if table["name"] == "clients":
            yield f"{table['title']}: {len(table['rows']) + table['more']:,}"
            yield from (f"  {_said(table, row)}" for row in table["rows"])
            if table["more"]:
                yield f"  and {table['more']:,} more"


def _said(table: Mapping[str, Any], row: Any) -> str:
    pairs = zip(table["columns"], row, strict=True)
    return ", ".join(
        f"{title} {word(v, kind)}" for (title, kind), v in pairs if v not in {None, ""}
    )
