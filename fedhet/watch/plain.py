"""Print the page's content as lines: for a pipe, a screen reader, a terminal without colours."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from fedhet.watch.view import IDLE, RunView, SweepView, word

POLL = 1.0  # seconds between looks
PATIENCE = 3  # looks after which a run that nobody writes counts as broken off
STATES = {"cells", "sites"}  # tables whose second column is a state; its changes are told


def follow(view: RunView | SweepView) -> Iterator[str]:
    """Yield lines as they come, until the run or all runs are over."""
    look = view.look()
    yield f"{look['name']}: {look['title']}"
    told, rounds, idle = "", 0, 0
    rows: dict[tuple[str, str], str] = {}
    while True:
        if look["of"] < rounds:
            rounds = 0
            yield "it started again"
        yield from _rounds(look, rounds)
        yield from _changed(look, rows)
        if look["of"] > rounds and (left := dict(look["facts"]).get("time left")):
            yield f"time left: {left}"
        rounds = look["of"]
        now = ": ".join(filter(None, (look["status"], look["says"])))
        idle = idle + 1 if look["status"] == IDLE else 0
        over = look["over"] and (look["status"] != IDLE or idle >= PATIENCE)
        damage = [f"cannot be read: {problem}" for problem in look["damage"]]
        state = "\n".join([now, *damage])
        if over or (state != told and not look["over"]):
            yield from state.split("\n")
        told = state
        if over:
            break
        time.sleep(POLL)
        look = view.look()
    yield ", ".join(f"{name}: {text}" for name, text in look["facts"])
    for table in look["tables"]:
        if table["name"] == "clients":
            yield f"{table['title']}: {len(table['rows']) + table['more']:,}"
            yield from (f"  {_said(table['columns'], row)}" for row in table["rows"])
            yield from [f"  and {table['more']:,} more"] * bool(table["more"])


def _rounds(look: Mapping[str, Any], told: int) -> Iterator[str]:
    """Yield a line for every new round and, below it, one for every client that failed in it."""
    wanted = dict(look["facts"]).get("round", "").partition(" of ")[2]
    failures = [row for t in look["tables"] if t["name"] == "failures" for row in t["rows"]]
    for row in look["rounds"]:
        if row[0] > told:
            pairs = zip(look["columns"][1:], row[1:], strict=True)
            said = ", ".join(f"{title} {word(v, kind)}" for (title, kind), v in pairs if title)
            yield f"round {row[0]} of {wanted}: {said}"
            for at, client, why in failures:
                if at == row[0]:
                    yield f"  {client and f'client {client} failed: '}{why}"


def _changed(look: Mapping[str, Any], told: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield a line for every cell or site whose state has changed."""
    for table in look["tables"]:
        for row in table["rows"] if table["name"] in STATES else ():
            key = table["name"], row[0]
            if told.get(key) != row[1]:
                told[key] = row[1]
                yield _said(table["columns"], row)


def _said(columns: Any, row: Any) -> str:
    pairs = zip(columns, row, strict=True)
    return ", ".join(f"{t} {word(v, kind)}" for (t, kind), v in pairs if v not in {None, ""})
