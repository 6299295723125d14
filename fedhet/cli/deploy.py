"""The commands of a deployment: ``certs``, ``server``, ``node``, ``status`` and ``unit``."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import contextlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from typer import Argument, Option

from fedhet.cli.common import File, Json, Texts, say, show_table, tell
from fedhet.cli.lists import template
from fedhet.engines.system import Interrupted, interruptible, look_away
from fedhet.errors import UserError, one_line
from fedhet.files import check_id, near, plain_path

PORT = 8443
TLS = Path("tls")
Text: TypeAlias = str | None


def _say(text: str) -> None:
    say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {one_line(text, None)}", sys.stdout)


def certs(
    out: Annotated[Path, Option(help="folder for certificates and keys")],
    server: Annotated[Texts, Option(help="name or address of the server; repeat for more")] = None,
    client: Annotated[Texts, Option(help="client id, to make a key for; repeat for more")] = None,
    request: Annotated[Texts, Option(help="NAME.csr of `fedhet key`; repeat for more")] = None,
    renew: Annotated[bool, Option("--renew", help="renew all, under the same CA")] = False,
) -> None:
    """Make a CA and a server certificate, and sign, make or renew what clients have."""
    from fedhet.deploy import certs

    servers, clients, requests = server or [], client or [], request or []
    if not (servers or clients or requests or renew):
        raise UserError("certs: give --server NAME, --request FILE, --client ID, or --renew")
    if servers or clients:
        certs.make(out, servers, clients)
        away = "(ca.key put away: its holder can make certificates in any name)"
        print(f"on the server:  fedhet server {out}  {away}")
        print(f"on a client:    {out}/ca.crt, its key (made there by `fedhet key NAME`), its .crt;")
        print("                then fedhet node NAME --server HOST:8443 --data FILE")
    for path in requests:
        name = certs.sign(out, Path(path))
        print(f"{name}: {out}/clients/{name}.crt goes back to the site, with {out}/ca.crt")
    for renewed in certs.renew(out) if renew else []:
        print(f"renewed: {renewed}")


def key(
    name: Annotated[str, Argument(metavar="NAME", help="this client's id")],
    out: Annotated[Path, Option(help="folder for the key")] = Path(),
) -> None:
    """Make a client's key where it stays, and a request for its certificate."""
    from fedhet.deploy.certs import make_key

    request = make_key(out, name)
    print(f"{request.with_suffix('')}: the key; it stays here")
    how = f"fedhet certs --out tls --request {request.name}"
    print(f"{request}: not secret; where ca.key is: {how}")


def server(
    tls: Annotated[Path, Argument(metavar="TLS", help="folder made by `fedhet certs`")] = TLS,
    host: Annotated[str, Option(help="address to listen at")] = "0.0.0.0",
    port: Annotated[int, Option(help="port for the clients", min=1, max=65535)] = PORT,
    database: Annotated[File, Option(help="file for keys, nodes and runs; in TLS/server")] = None,
) -> None:
    """Run the server of a federation; only clients with a key in TLS/clients are admitted."""
    from fedhet.deploy.control import ServerFolder
    from fedhet.deploy.server import FederationServer

    folder = ServerFolder(tls.expanduser().absolute())
    state = (database or folder.database).expanduser().absolute()
    _until_stopped(FederationServer(folder, host, port, state, _say).run)


def _until_stopped(run: Callable[[], None]) -> None:
    try:
        with interruptible():
            run()
    except Interrupted as stop:
        _say(f"stopped ({stop})")


def node(  # noqa: PLR0913, PLR0917  (a command's options)
    key: Annotated[Path, Argument(metavar="KEY", help="this client's private key")],
    server: Annotated[str, Option(help="HOST:PORT of `fedhet server`")] = "",
    data: Annotated[File, Option(help="own examples: table, NPZ, images <class>/<image>")] = None,
    partition: Annotated[Text, Option(help="K/N: share K of a public data set instead")] = None,
    model: Annotated[Text, Option(help="such as cnn-5, or 'cnn-5 weights=FILE'")] = None,
    device: Annotated[Text, Option(help="cpu, cuda, cuda:1")] = None,
    state: Annotated[File, Option(help="folder of the private model; or ~/.fedhet/NAME")] = None,
    limits: Annotated[File, Option(help="YAML file: what a run may do here")] = None,
    ca: Annotated[File, Option(help="the CA's certificate; or ca.crt near the key")] = None,
    check: Annotated[bool, Option("--check", help="test everything, without joining")] = False,
    write_limits: Annotated[File, Option(help="draft limits of --data and --preset")] = None,
    preset: Annotated[File, Option(help="of `fedhet init`, for --write-limits")] = None,
    history: Annotated[bool, Option("--history", help="list questions and answers")] = False,
    new_data: Annotated[bool, Option("--new-data", help="put aside states of other data")] = False,
) -> None:
    """Take part in a federation until stopped; print a line for every round."""
    from fedhet.deploy.certs import read_certificate, read_key
    from fedhet.deploy.node import Node, NodePlan

    key_id = check_id(key.name, "KEY")
    home = plain_path(state or f"~/.fedhet/{key_id}")
    if history:
        _history(home)
        return
    if write_limits is not None:
        _draft(write_limits, data, preset, key)
        return
    if not server:
        raise UserError("--server: give HOST:PORT of `fedhet server`")
    config = _examples(data, partition, key_id)
    extra: dict[str, object] = {"state-dir": home, "model": _model(model), "device": device}
    extra["limits"] = limits and _file(limits, "--limits")
    config |= {option: str(value) for option, value in extra.items() if value}
    key, ca = _file(key, "KEY"), _ca(key, ca)
    certificate = key.with_name(f"{key.name}.crt")
    if certificate.is_file():  # a node with a certificate proves its keys by these files
        config |= {"key": str(key), "certificate": str(certificate), "ca": str(ca)}
    plan = NodePlan(key=key, ca=ca, server=_address(server), config=config, log=home / "node.log")
    if check:
        _check(plan)
        return
    read_key(plan.key)
    read_certificate(plan.ca)
    look_away()
    if options := [option for option in ("limits", "model", "device") if option in config]:
        # Aside: the process that stays need not have torch in its memory.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(_refuse, plan, options).result()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if new_data:
        from fedhet.site.limits import begin_anew

        if aside := begin_anew(home):
            _say(f"{key_id}: states and history are in {aside} now")
    _say(f"{key_id}: joining {plan.server}; log: {plan.log}")
    _until_stopped(Node(plan, _say).run)


def _refuse(plan: Any, given: Sequence[str]) -> None:
    from fedhet.deploy.node_check import check

    for _, good, text in check(plan, given):
        if not good:
            raise UserError(text)


def _history(home: Path) -> None:
    from fedhet.site.limits import History, asked

    lines, last = History(home).lines, ""
    for line in lines:
        if line["question"] != last:
            print(asked(line))
        print(f"    {line['time']}  {line['stage']}: {one_line(line['answer'], 2000)}")
        last = line["question"]
    if not lines:
        print(f"no question yet ({home})")


def _draft(out: Path, data: Path | None, preset: Path | None, key: Path) -> None:
    from fedhet.config.load import load_noted
    from fedhet.site.limits import draft
    from fedhet.site.local_data import open_private

    if data is None:
        raise UserError("--write-limits: give --data, and --preset with what `fedhet init` wrote")
    changes = {} if preset else {"dataset": "image-folder"}
    changes |= {"data-path": str(_file(data, "--data", or_folder=True))}
    config = load_noted(preset, changes)[0]
    certified = key.with_name(f"{key.name}.crt").is_file()
    text = draft(config, open_private(config, config.data_path), certified=certified)
    if out.exists():
        raise UserError(f"--write-limits: '{out}' already exists and is not overwritten")
    out.write_text(text, encoding="utf-8")
    print(f"{out}: read it, change it, and start the node with --limits {out}")


def _examples(data: Path | None, partition: str | None, name: str) -> dict[str, str | int]:
    if (data is None) == (partition is None):
        other = "--partition K/N (share K of N of a public data set)"
        raise UserError(f"give --data FOLDER_OR_FILE (this site's own examples), or {other}")
    if data is not None:
        return {"data-dir": str(_file(data, "--data", or_folder=True)), "name": name}
    share = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", str(partition))
    if share is None or int(share[1]) >= int(share[2]):
        raise UserError(f"--partition: '{partition}' is not allowed: K/N with 0 <= K < N")
    return {"partition-id": int(share[1]), "num-partitions": int(share[2])}


def _model(name: str | None) -> str | None:
    """Return the node's own model; its file of weights by the whole path."""
    plain, _, weights = (name or "").partition(" weights=")  # checked aside, with torch
    return f"{plain} weights={_file(Path(weights), '--model')}" if weights else name


def _file(path: Path, what: str, *, or_folder: bool = False) -> Path:
    """Return the absolute path of a file; UserError if it does not exist."""
    whole = plain_path(path)
    if not (whole.exists() if or_folder else whole.is_file()):
        raise UserError(f"{what}: '{whole}' does not exist{near(whole)}")
    return whole


def _ca(key: Path, ca: Path | None) -> Path:
    """Return the CA's certificate: named, beside the key, or where `fedhet certs` puts it."""
    if ca is not None:
        return _file(ca, "--ca")
    folder = key.expanduser().absolute().parent
    if places := [p for p in (folder / "ca.crt", folder.parent / "ca.crt") if p.is_file()]:
        return places[0]
    raise UserError(f"--ca: ca.crt is not in '{folder}' or '{folder.parent}': give its path")


def _address(server: str) -> str:
    from fedhet.deploy.network import address

    bare = server.count(":") > 1 and "[" not in server  # ::1
    with contextlib.suppress(ValueError):  # no port that there can be
        parts = urlsplit(f"//[{server}]" if bare else f"//{server}")
        if parts.hostname and not parts.path and parts.port != 0:
            return address(parts.hostname, parts.port or PORT)
    raise UserError(f"--server: '{server}' is not allowed: HOST:PORT, without a scheme")


def _check(plan: Any) -> None:
    from fedhet.deploy import node_check

    bad: list[str] = []
    for what, good, text in node_check.check(plan):  # names of columns may come from others
        print(f"{'ok   ' if good else 'WRONG'} {what}: {one_line(text, 4000)}", flush=True)
        bad += [] if good else [what]
    for text in node_check.answers(plan) if "limits" not in bad else ():
        print(f"     this site: {one_line(text, 4000)}")
    if bad:
        raise UserError(f"this node cannot take part yet: {', '.join(bad)}")
    print("ready to join")


def status(
    superlink: Annotated[Path, Option(metavar="TLS", help="folder of `fedhet server`")] = TLS,
    as_json: Json = False,
) -> None:
    """List nodes with model, examples, last round and failures, and the runs."""
    from fedhet.deploy.control import collect, server_folder
    from fedhet.deploy.network import Waiting
    from fedhet.records.summary import headline

    folder = server_folder(superlink)
    folder.check_running()
    control = folder.connect()
    waiting = Waiting(f"the server of '{superlink}'", tell)
    with contextlib.closing(control), waiting.answer():
        collected = collect(control)
    if as_json:
        print(json.dumps(collected, indent=2))
        return
    keys = ("name", "status", "model", "images", "last_round", "failures")
    rows = [[node.get(key, "-") for key in keys] for node in collected["nodes"]]
    show_table("nodes", ("name", "status", "model", "examples", "last round", "failures"), rows)
    rows = [
        [
            Path(run["folder"]).name or run["run"], run["method"] or "-", run["status"],
            f"{run.get('round', '-')}/{run.get('rounds', '-')}",
            headline(run["metric"], run) if "metric" in run else "-", run.get("failures", "-"),
        ]
        for run in collected["runs"]
    ]  # fmt: skip
    show_table("runs", ("run", "method", "status", "round", "metric", "failures"), rows)


def unit(what: Annotated[str, Argument(metavar="server|node", help="whose unit")]) -> None:
    """Print a systemd unit for `fedhet server` or `fedhet node`."""
    from jinja2 import Template

    from fedhet.engines.system import script

    if what not in {"server", "node"}:
        raise UserError(f"unit: '{what}' is not allowed: server or node")
    text = Template(template("unit"), trim_blocks=True, keep_trailing_newline=True)
    sys.stdout.write(text.render(what=what, fedhet=script("fedhet")))
