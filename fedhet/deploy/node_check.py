"""``fedhet node --check``: find what would keep this node from taking part, without joining."""

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from fedhet.config.registry import METHODS
from fedhet.config.schema import RunConfig
from fedhet.data.cache import open_dataset
from fedhet.data.formats import NPZ_SUFFIXES, ROW_SUFFIXES, find_files, holds
from fedhet.data.inputs import canonical
from fedhet.data.rows import RowFile, open_rows
from fedhet.data.table import Npz
from fedhet.deploy.certs import RENEW, read_certificate, read_key, warning
from fedhet.deploy.network import knows, reach, via
from fedhet.deploy.node import NodePlan
from fedhet.errors import Refused, UserError, nearest, one_line
from fedhet.files import check_folder, folder_size, read_tensors
from fedhet.models.names import FOLDER, folder_of, parse, validate_model_name
from fedhet.site.limits import History, check_means, read_limits, state_root
from fedhet.site.local_data import choose_device
from fedhet.sums.client import cannot_prove

ENOUGH = 1 << 30  # bytes free for states and caches


def check(plan: NodePlan, only: Iterable[str] = ()) -> Iterator[tuple[str, bool, str]]:
    """Yield every finding as soon as it is known: what was looked at, whether it is good, words."""
    tests = {
        "key": _key, "limits": _limits, "examples": _own_examples, "model": _model,
        "connection": _connection, "admission": _admission, "disk": _disk, "device": _device,
    }  # fmt: skip
    for what in only or tests:
        try:
            yield what, True, tests[what](plan)
        except (UserError, OSError, ValueError, RuntimeError) as error:
            yield what, False, one_line(error)


def _key(plan: NodePlan) -> str:
    if plan.key.stat().st_mode & 0o077:
        raise UserError(f"'{plan.key}' can be read by others: chmod 600 {plan.key}")
    read_key(plan.key)
    paths = [*map(Path, filter(None, [str(plan.config.get("certificate", ""))])), plan.ca]
    notes = [f"'{p}' {text}: {RENEW}" for p in paths if (text := warning(read_certificate(p)))]
    if reason := cannot_prove(plan.config):
        notes.append(f"no part in masked sums: {reason}")
    return "; ".join([str(plan.key), *notes])


def _limits(plan: NodePlan) -> str:
    path = plan.config.get("limits")
    try:
        limits = read_limits(plan.config)
    except Refused as error:  # the owner of the file may see the reason, unlike the server
        raise UserError(f"--limits: '{path}' is not valid: {one_line(error.__cause__)}") from error
    history = History(state_root(plan.config))
    check_means(limits, history, lambda: cannot_prove(plan.config))
    for name in limits.modules or ():
        if find_spec(name.partition(".")[0]) is None:
            raise UserError(f"--limits: modules: '{name}' is not installed here")
    for name in {*(limits.methods or ())} - {*METHODS}:
        raise UserError(f"--limits: methods: '{name}' is unknown{nearest(name, METHODS)}")
    limits.check("max_disk", folder_size(state_root(plan.config)))
    return str(path or "none: --write-limits FILE drafts them")


def answers(plan: NodePlan) -> list[str]:
    """Return in plain words what this site answers: its limits, and what they leave to a run."""
    limits = read_limits(plan.config)
    return [*limits.said(), *(f"no limit on {text}" for text in limits.left_open())]


def _own_examples(plan: NodePlan) -> str:
    if not plan.config.get("data-dir"):
        return "a share of a public data set"
    path = Path(str(plan.config["data-dir"]))
    if holds(path, ROW_SUFFIXES):
        file = open_rows(find_files("table", str(path), ROW_SUFFIXES))
        _check_columns(file, plan)
        columns = f"{len(file.columns)} columns (the run names target and categories)"
        return f"{columns}: {', '.join(file.columns)}"
    if holds(path, NPZ_SUFFIXES):
        files = find_files("signals", str(path), NPZ_SUFFIXES)
        shapes = [Npz(one).windows.shape for one in files]
        return f"{sum(shape[0] for shape in shapes)} signals of shape {shapes[0][1:]}"
    images = open_dataset("image-folder", data_path=str(path))
    classes = ", ".join(images.classes)
    return f"{len(images.labels)} images of {len(images.classes)} classes: {classes}"


def _check_columns(file: RowFile, plan: NodePlan) -> None:
    """Raise UserError for limits that name what this site's own file lacks."""
    try:
        limits = read_limits(plan.config)
    except Refused:  # as the line about limits says
        return
    target = [limits.target] if limits.target else []
    named = (*target, *(limits.group or ()), *(limits.columns or ()))
    if lacks := [name for name in named if name not in file.columns]:
        text = f"'{lacks[0]}', which the file lacks{nearest(lacks[0], file.columns)}"
        raise UserError(f"--limits name column {text}")
    if target and limits.classes:
        values = (one for _, part in file.chunks(target, ()) for one in part[target[0]])
        counts = Counter(map(canonical, values))
        most = max(counts[canonical(name)] for name in limits.classes)
        if most < max(1, limits.min_class or 0):
            raise UserError(f"--limits: no class has min-class={limits.min_class} rows in the file")


def _model(plan: NodePlan) -> str:
    name = str(plan.config.get("model", ""))
    if not name:
        return "what the run assigns"
    validate_model_name(name)
    named = parse(name)
    if named.weights:  # whether they fit is known only with a run's classes
        read_tensors(Path(named.weights).expanduser(), "pt")
    if named.plain.startswith(FOLDER) and not (folder_of(named.plain) / "config.json").is_file():
        raise UserError(f"--model: '{folder_of(named.plain)}' has no config.json")
    return f"{name}, which is built when a run begins"


def _connection(plan: NodePlan) -> str:
    reach(plan.server, plan.ca)
    return f"{plan.server} over TLS{via(plan.server)}"


def _admission(plan: NodePlan) -> str:
    if not knows(plan.server, plan.ca, plan.key):
        text = f"does not know the key '{plan.key}': put its .pub into tls/clients there"
        raise UserError(f"{plan.server} {text}")
    return f"{plan.server} knows this key"


def _disk(plan: NodePlan) -> str:
    path = Path(str(plan.config["state-dir"]))
    free = check_folder(path, "--state")
    if free < ENOUGH:
        raise UserError(f"'{path}' has {free >> 20} MiB free; {ENOUGH >> 20} MiB are needed")
    return f"'{path}' can be written, {free >> 30} GiB free"


def _device(plan: NodePlan) -> str:
    device = choose_device(RunConfig(), plan.config)
    return f"{device} {torch.cuda.get_device_name(device) if device.type == 'cuda' else ''}".strip()
