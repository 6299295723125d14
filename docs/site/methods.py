"""Make the page of each method: what crosses the wire, equations, keys, notes, figures.

The picture and its sizes are of messages of a small run, so that they cannot differ from the code.
Equations are the docstrings', figures those of ``docs/results`` and ``docs/papers.yaml``.
"""

import html
import inspect
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from roles import cell, plain

from fedhet.cli.lists import schema_keys
from fedhet.config.registry import METHODS, SPELT, Method
from fedhet.errors import UserError
from fedhet.protocol.messages import TRAIN, arrays_of
from fedhet.protocol.payload import Payload
from fedhet.testing import make_client, simulate, small

DOCS = Path(__file__).resolve().parents[1]
RUN: dict[str, Any] = {  # whose messages are drawn
    "clients": 6, "classes_per_client": 2, "dataset": "synthetic:120x10", "rounds": 2,
    "models": ["cnn-1", "cnn-5"],
}  # fmt: skip
CAPTION = (
    "Measured: client 0 in round 2 of six clients, each with two of ten classes, CNN-1 and CNN-5 "
    "in turn, images of 3 x 32 x 32. Class ids, counts and ranks are integers and are not counted."
)
WIDTH, LINE, ROWS = 480, 20, 7  # of the picture: pixels, pixels, arrays at most
LETTERS = {
    "theta": "θ", "lambda": "λ", "alpha": "α", "beta": "β", "gamma": "γ", "mu": "μ", "rho": "ρ",
    "tau": "τ", "pi": "π", "eta": "η", "phi": "φ",
}  # fmt: skip
SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "~": "\u0303"}
# A symbol of one or two letters, or a sum, and its indices.
SYMBOL = re.compile(
    r"(?<![\w`])([A-Za-zα-ω]{1,2}[\u0302\u0303]?|[Σ∇]|max|min|mean)"
    r"((?:[_^](?:\{[^{}]+\}|[A-Za-zα-ω0-9']+(?:,[a-z]\b)*))+)"
)


@dataclass(frozen=True)
class Traffic:
    """Payloads of a client's round, and the numbers that it keeps, by module or tensor."""

    down: Payload
    up: Payload
    kept: dict[str, int]


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the spelling of every method, its page, and the page's text."""
    notes = sections(DOCS / "reference" / "method-notes.md")
    for name, method in METHODS.items():
        shown = SPELT[name]
        own = schema_keys(method.params)
        halves = (sys.modules[half.__module__] for half in (method.strategy, method.client))
        server, client = (docstring(inspect.getdoc(half) or "") for half in halves)
        parts = [
            f"# {shown}", f"**{html.escape(sentence(method.about))}**", f"    fedhet run {name}",
            "## What crosses the wire", *picture(name, method),
            "## What it computes", server, "### At the client", client,
            "## Keys", table(own, in_cell) if own else "It has no keys of its own.",
        ]  # fmt: skip
        if shown in notes:
            parts += ["## Traps and differences", docstring(notes[shown])]
        parts += ["## Figures here", ours(shown), "## Figures of the papers", papers(name)]
        yield shown, f"reference/methods/{name}.md", "\n\n".join(parts) + "\n"


def sentence(about: str) -> str:
    """Return a method's line of description as a sentence."""
    return about[0].upper() + about[1:] + "."


def sections(path: Path) -> dict[str, str]:
    """Return the parts of a page by their headings."""
    parts = re.split(r"^## (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)}


# --- what crosses the wire -----------------------------------------------------------------------


def picture(name: str, method: Method) -> list[str]:
    """Return the drawing and its caption, or a sentence if the method needs more than this run."""
    try:
        traffic = measured(name, method)
    except UserError:
        halves = (method.client.download_type, method.strategy.upload_type)
        texts = dict.fromkeys(inspect.getdoc(half) or "" for half in halves)
        return [f"Each way: {docstring(' '.join(texts))}"]
    said = [inspect.getdoc(half) or "" for half in (method.strategy, method.client)]
    server, client = (text.splitlines()[0].replace("``", "") for text in said)
    return [drawing(server, client, traffic), f"*{CAPTION}*"]


def measured(name: str, method: Method) -> Traffic:
    """Run the method and return what client 0 receives, sends and keeps."""
    seen: list[list[Any]] = []

    def note(client: int, message: Any, reply: Any) -> Any:
        kind, record = message.metadata.message_type, message.content.config_records["config"]
        if kind == TRAIN and client == 0 and record["round"] == RUN["rounds"]:
            seen[:] = [arrays_of(message), arrays_of(reply)]
        return reply

    with tempfile.TemporaryDirectory() as folder:
        config = small(Path(folder), method=name, **RUN)
        simulate(config, tamper=note)
        made = make_client(config, 0, Path(folder) / "states")
        types = made.download_type, method.strategy.upload_type
        down, up = (kind.from_ndarrays(one) for kind, one in zip(types, seen, strict=True))
        kept = {
            key: sum(one.numel() for one in module.parameters())
            or sum(one.numel() for one in module.buffers() if one.is_floating_point())
            for key, module in made.modules.items()
        }
    return Traffic(down, up, kept)


def drawing(server: str, client: str, traffic: Traffic) -> str:
    """Return the SVG: the server above, the client below, what goes down and up between them."""
    columns = [rows(traffic.down), rows(traffic.up)]
    says = textwrap.wrap(server, 56)
    keeps = [f"{key} {numbers:,}" for key, numbers in traffic.kept.items()]
    kept = textwrap.wrap(client, 56)
    kept += textwrap.wrap(f"Numbers in its state: {', '.join(keeps)}.", 56)
    top, middle = 44 + LINE * len(says), 44 + LINE * max(map(len, columns))
    height = top + middle + 44 + LINE * len(kept)
    parts = [
        f'<svg class="wire" viewBox="0 0 {WIDTH} {height + 4}" role="img" '
        f'aria-label="{traffic.down.floats:,} floats down, {traffic.up.floats:,} floats up">'
    ]
    parts += box(2, top, "Server", says) + box(top + middle, height - top - middle, "Client", kept)
    for column, (x, payload, way) in enumerate(
        ((16, traffic.down, "down"), (WIDTH / 2 + 16, traffic.up, "up"))
    ):
        start, end = top + 8, top + middle - 8
        tip = (end, -7) if way == "down" else (start, 7)
        if payload.floats or payload.bytes:
            parts.append(f'<path class="way" d="M{x} {start}V{end}"/>')
            parts.append(f'<path class="tip" d="M{x} {tip[0]}l-6 {tip[1]}h12z"/>')
        title = f"{payload.floats:,} floats {way}" if payload.floats else f"nothing {way}"
        parts.append(text(x + 14, top + 28, title, "strong"))
        parts += [
            text(x + 14, top + 28 + LINE * (k + 1), row) for k, row in enumerate(columns[column])
        ]
    return "".join([*parts, "</svg>"])


def rows(payload: Payload) -> list[str]:
    """Return a line for each array of a payload, with its shape."""
    lines = []
    for one in fields(payload):
        value = getattr(payload, one.name)
        if "rest" in one.metadata:
            shapes = [shape(array) for array in value]
            lines += [f"{one.name}: {len(value)} arrays", *shapes] if value else []
        else:
            kind = "" if value.dtype.kind == "f" else ", integers"
            lines.append(f"{one.name} {shape(value)}{kind}")
    more = len(lines) - ROWS
    return [*lines[:ROWS], f"and {more} more"] if more > 1 else lines


def shape(array: Any) -> str:
    """Return the shape of an array as text."""
    return "(" + ", ".join(map(str, array.shape)) + ("," if array.ndim == 1 else "") + ")"


def box(y: float, height: float, title: str, lines: Sequence[str]) -> list[str]:
    """Return a frame with a title and lines."""
    frame = f'<rect x="2" y="{y}" width="{WIDTH - 4}" height="{height - 2}" rx="8"/>'
    body = [text(16, y + 26 + LINE * (k + 1), line) for k, line in enumerate(lines)]
    return [frame, text(16, y + 26, title, "strong"), *body]


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text class="{kind}" x="{x}" y="{y}">{html.escape(words)}</text>'


# --- docstrings ----------------------------------------------------------------------------------


def docstring(words: str) -> str:
    """Return a docstring as Markdown: indented parts are equations, symbols get their indices."""
    parts = []
    for part in re.split(r"\n\s*\n", plain(words)):
        if part.startswith("    "):
            shown = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", symbols(part, prose=False))
            lines = (" ".join(line.split()) for line in shown.splitlines())
            parts.append(f'<p class="equation">{"<br>".join(lines)}</p>')
        else:
            pieces = re.split(r"(`+[^`]+`+)", part)
            pieces[::2] = [symbols(piece) for piece in pieces[::2]]
            pieces[1::2] = [f"`{piece.strip('`')}`" for piece in pieces[1::2]]
            joined = "".join(pieces)
            parts.append(
                re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", joined)
            )
    return "\n\n".join(parts)


def symbols(words: str, *, prose: bool = True) -> str:
    """Return prose or an equation as HTML: Greek letters, signs, indices."""
    for name, letter in LETTERS.items():
        words = re.sub(rf"(?<![A-Za-z/]){name}(?![A-Za-z])", letter, words)
    words = re.sub(r"\bsum(?=_)|\bsum(?= cos| \(| [a-z]_)", "Σ", words)
    words = re.sub(r"\bgrad(?=[ _])", "∇", words)
    words = re.sub(r"\b([A-Zα-ω])(?:\^(?=_)|_hat)", "\\1\u0302", words)
    for sign, better in SIGNS.items():
        words = words.replace(sign, better)
    words = SYMBOL.sub(indexed, html.escape(words, quote=False))
    words = re.sub(r"\^(\d)", r"<sup>\1</sup>", words)
    return re.sub(r"(?<!\\)([_\[\]])", r"\\\1", words) if prose else words


def in_cell(words: str) -> str:
    """Return prose in a cell of a table."""
    return symbols(words).replace("|", "\\|")


def indexed(symbol: re.Match[str]) -> str:
    """Return a symbol with its indices below and above."""
    marks = re.findall(r"([_^])(\{[^{}]+\}|[^_^{}]+)", symbol[2])
    tags = {"_": "sub", "^": "sup"}
    inner = [SYMBOL.sub(indexed, index.strip("{}")) for _, index in marks]
    marked = zip((tags[mark] for mark, _ in marks), inner, strict=True)
    return symbol[1] + "".join(f"<{tag}>{index}</{tag}>" for tag, index in marked)


# --- tables --------------------------------------------------------------------------------------


def table(keys: dict[str, dict[str, Any]], show: Callable[[str], str] = cell) -> str:
    """Return a table of keys with default, range and meaning, which ``show`` writes."""
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key, what in keys.items():
        default = what["default"]
        shown = ",".join(default) if isinstance(default, list) else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
        shown = f"`{shown}`" if shown else ""
        lines.append(f"| `{key}` | {shown} | {cell(what['allowed'])} | {show(what['meaning'])} |")
    return "\n".join(lines) + "\n"


def ours(shown: str) -> str:
    """Return a table of the method's recorded figures, read from the pages of results."""
    lines = []
    for path in sorted((DOCS / "results").glob("*.md")):
        parts = {title.split(" <")[0]: body for title, body in sections(path).items()}
        if "Accuracy" not in parts:
            continue
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        paired = cells(parts.get("Paired differences to Standalone", ""))
        costs = cells(parts.get("Costs, and accuracy at equal compute", ""))
        for variant, row in cells(parts["Accuracy"]).items():
            if variant == shown or variant.startswith(f"{shown} ("):
                name = title + variant.removeprefix(shown)
                difference = next(iter(list(paired.get(variant, {}).values())[2:3]), "-")
                up, down = (
                    costs.get(variant, {}).get(f"floats {way}", "-") for way in ("up", "down")
                )
                figure = next(value for key, value in row.items() if "[" in key)
                lines.append(
                    f"| [{name}](../../results/{path.name}) | {row['blocks']} | {figure} | "
                    f"{difference} | {up} | {down} |"
                )
    if not lines:
        return (
            "It has no record yet. [Newer methods](../../results/newer-methods.md) has other runs."
        )
    head = (
        "Test figure over all clients after the last round, in percent, with its 95 % interval "
        "over blocks; then the difference to Standalone on the same blocks."
    )
    names = "| setting | blocks | figure | less Standalone | floats up | floats down |"
    return "\n".join([head, "", names, "|---|---|---|---|---|---|", *lines])


def cells(body: str) -> dict[str, dict[str, str]]:
    """Return the rows of the first table of a text, by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ")]
    return {row[0]: dict(zip(lines[0], row, strict=False)) for row in lines[1:]}


def papers(name: str) -> str:
    """Return the papers' accuracies of a method."""
    content = yaml.safe_load((DOCS / "papers.yaml").read_text("utf-8"))
    found = [
        (part["name"], row) for part in content["tables"] for row in part["rows"]
        if row["method"] == name
    ]  # fmt: skip
    if not found:
        return "The papers whose tables `docs/papers.yaml` has do not run it in this setting."
    columns = [f"{one['data'].upper()}, N = {one['clients']}" for one in content["columns"]]
    lines = [
        f"Test accuracy in percent: {content['conditions']}. '-': it failed to converge. What they "
        "measure: [the participants' mean](../metrics.md).",
        "", f"| models | {' | '.join(columns)} | source |", f"|{'---|' * (len(columns) + 2)}",
    ]  # fmt: skip
    for part, row in found:
        source = content["sources"][row["source"]]
        values = ["-" if value is None else f"{value:.2f}" for value in row["values"]]
        name = row.get("name", part)
        where = f"{source['title']}, arXiv {source['arxiv']}, {row['where']}"
        lines.append(f"| {name} | {' | '.join(values)} | {where} |")
    return "\n".join(lines)
