"""A client's inference model outside any run: taken from a state, exported, loaded again.

An exported model is a folder with ``card.yaml``, by which the network is built again, and
``model.safetensors`` with the tensors that inference needs. The folder of a client's states has the
same in ``client.json`` and its generations.
"""

import contextlib
import hashlib
import importlib.util
import io
import logging
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load, save

import fedhet
from fedhet import files, plugins
from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import build_config
from fedhet.config.registry import find_method
from fedhet.config.schema import RunConfig
from fedhet.data.inputs import IMAGE, READ_KEYS, SIGNAL, TABLE, TOKENS, Inputs, load_inputs
from fedhet.data.table import token_ids
from fedhet.errors import Damaged, UserError, brief
from fedhet.export.predict import Answers, Personalised, classify
from fedhet.models.names import FOLDER, folder_of, parse
from fedhet.models.networks import TokenModel
from fedhet.records.formats import without_gone
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.site.local_data import without_examples
from fedhet.site.state import DESCRIPTION, PREDICTIONS, Bundle, FileStore, accuracies_of

log = logging.getLogger("fedhet")
CARD, WEIGHTS, ONNX = "card.yaml", "model.safetensors", "model.onnx"
_ONNX_NAMES = {IMAGE: "images", SIGNAL: "signals", TABLE: "rows", TOKENS: "tokens"}
_TOLERANCE = 1e-4  # largest difference of two logits, relative to the largest logit
FORMAT = 1
_UNFIT = (KeyError, TypeError, ValueError, RuntimeError, AttributeError, SafetensorError)
_CONFIG = (
    "method", "image-size", "models", "precision", "threads", "small-model", "representation",
    "grey", *(key.replace("_", "-") for key in READ_KEYS),
)  # fmt: skip
_RESIZED = "resized to the shape, bilinear, aspect not kept; "
_PREPARATIONS = {  # how inputs come of raw examples, for people
    IMAGE: f"{_RESIZED}pixel / 127.5 - 1, pixel in 0..255",
    "standardised": f"{_RESIZED}(pixel / 255 - mean) / deviation by channel, as in {WEIGHTS}",
    "scan": f"{_RESIZED}2 (x - low) / (high - low) - 1, cut to [-1, 1], low and high as in "
    f"{WEIGHTS}",
    SIGNAL: f"(x / scale - mean) / deviation by channel, as in {WEIGHTS}",
    TABLE: "numbers with the median for a gap, (x - mean) / deviation cut to [-10, 10]; then for "
    "each of them 1 where it was a gap, else 0; then one-hot categories, all 0 for a gap or a "
    "value that is not listed; columns in the order of inputs; median, mean and deviation as in "
    "model.safetensors",
    TOKENS: "words and marks in lower case, each 1 + CRC-32 mod (vocabulary - 1), 0 behind",
}


def rebuild(
    description: Mapping[str, Any], folder: Path, generation: int = 0, *, trusted: bool = True
) -> MethodClient:
    """Return the client of ``description`` on the CPU, as in a stored generation of ``folder``.

    Generation 0 is a fresh client. Only if ``trusted`` may it name files outside ``folder``. Raise
    UserError for an impossible description; Refused, KeyError or RuntimeError if it does not fit.
    """
    method = find_method(str(description["method"]))
    classes = [str(name) for name in description["classes"]]
    settings = without_gone(str(description["method"]), description["hyper-parameters"])
    params = files.shaped(method.params, settings, "hyper-parameters")
    keys = {key: description[key] for key in _CONFIG if key in description}
    config = files.shaped(RunConfig, keys, "keys")
    if "inputs" in description:
        inputs = load_inputs(description["inputs"])
    else:  # images, by their keys
        _ = description["image-size"]
        inputs = Inputs.image(config.image_size, grey=config.grey, standardised=config.standardise)
    architecture = str(description["architecture"])
    named = parse(architecture)
    # The folder's author would choose which file is opened here.
    if not trusted and (named.weights or named.plain.startswith(FOLDER)):
        what = f"architecture: '{architecture}' names a file of weights"
        raise UserError(f"'{folder}': {what}: give --trust if you trust its author")
    data = without_examples(str(description["client"]), classes, inputs)
    config, store = config.model_copy(update={"params": params}), FileStore(folder, sync=True)
    setup = Setup(config, data, classes, architecture, torch.device("cpu"), store)
    client: MethodClient = method.client(setup)
    client.restore(generation)
    return client


# --- opening ------------------------------------------------------------------------------------


def load_model(
    folder: Path, *, best: bool = False, trust: bool = False
) -> tuple[Personalised, dict[str, Any]]:
    """Return the model of an exported folder, or of a client's folder of states, and its card.

    Of states it is the one that the server accepted last, without a run folder around them the
    newest; with ``best`` that of the best validation round (``keep-best``). Raise UserError for a
    folder that is neither, is damaged, or names code of others (unless ``trust`` is set).
    """
    folder = files.plain_path(folder)
    exported = (folder / CARD).is_file()
    if exported and best:
        raise UserError(f"--best: '{folder}' is an exported model, not a client's states")
    name = CARD if exported else DESCRIPTION
    about = files.read_yaml(folder / CARD) if exported else _read_description(folder)
    if exported and about.get("format") != FORMAT:
        raise UserError(f"'{folder}': {CARD} is not of format {FORMAT}")
    trusted = trust or plugins.made_here(about)
    plugins.require_trust(f"'{folder}'", about, trusted=trusted)
    store = FileStore(folder, sync=True)
    chosen = 0 if exported else _choose(store, best=best)
    try:
        if not exported:
            model = Personalised(rebuild(about, folder, chosen, trusted=trusted))
            return model, _card(model, about, chosen, store.load(chosen))
        data = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(data).hexdigest() != about["sha256"]:
            raise UserError(f"'{folder}': {WEIGHTS} is damaged: its SHA-256 is not the card's")
        architecture = str(about["architecture"])
        inside = parse(architecture).plain == f"{FOLDER}{NETWORK}"
        architecture = (
            architecture.replace(NETWORK, str(folder / NETWORK), 1) if inside else architecture
        )
        model = Personalised(
            rebuild(about | {"architecture": architecture}, folder, trusted=inside)
        )
        model.load_state_dict(load(data), strict=True)
        return model, about
    except OSError as error:
        raise UserError(f"'{folder}': {WEIGHTS} cannot be read: {error.strerror}") from error
    except _UNFIT as error:
        raise UserError(f"'{folder}': the tensors do not fit {name}: {brief(error)}") from error


def _read_description(state: Path) -> dict[str, Any]:
    try:
        return files.read_json(state / DESCRIPTION)
    except Damaged as error:
        raise UserError(f"'{state}': {DESCRIPTION} is damaged: {error.what}") from error
    except OSError as error:
        # A run folder has state/<experiment>/<client>.
        inside = (f"*/{CARD}", *(f"{x}/{DESCRIPTION}" for x in ("*", "*/*", "state/*/*")))
        below = sorted({path.parent for one in inside for path in state.glob(one)})
        hint = f"; did you mean '{below[0]}'?" if below else ""
        what = f"an exported model ({CARD}) nor a client's folder of states ({DESCRIPTION})"
        raise UserError(f"'{state}' is neither {what}{hint}") from error


def _choose(store: FileStore, *, best: bool) -> int:
    """Return the best generation, or the one that the server accepted last."""
    there, state = store.generations(), store.folder
    if best:
        if (chosen := store.best()) is None:
            raise UserError(f"state '{state}' has no best state: run with keep-best=true")
        return chosen
    if not there:
        raise UserError(f"state '{state}' is empty: the client has not trained")
    # The run folder around a state knows which was accepted; a node has none.
    kept = load_checkpoint(RunFolder(state.parents[2]).checkpoint)
    known = kept.meta["roster"].get("generations", {}) if kept else {}
    accepted: int = known.get(state.name, there[-1])
    if accepted not in there:
        what = f"{accepted}, the last that the server accepted (0: none), is not in '{state}'"
        raise UserError(f"generation: {what}; there: {', '.join(map(str, there))}")
    if accepted != there[-1]:
        text = "state '%s': generation %d is taken, which the server accepted; the newest is %d"
        log.warning(text, state, accepted, there[-1])
    return accepted


def _card(
    model: Personalised, description: Mapping[str, Any], generation: int, bundle: Bundle
) -> dict[str, Any]:
    """Return what ``card.yaml`` says of a state."""
    about = {k: v for k, v in description.items() if k != plugins.MAC}
    metrics, inputs = accuracies_of(bundle), model.inputs
    how = "scan" if inputs.scan else "standardised" if inputs.standardised else inputs.kind
    return {
        "format": FORMAT,
        "fedhet": fedhet.__version__,
        "method": about.pop("method"),
        "architecture": _blank(about.pop("architecture")),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "parts": list(model.parts),
        "run": about.pop("run"),
        "client": about.pop("client"),
        "generation": generation,
        "accuracy": {  # percent, of the client's own examples; null: not in that round
            "test": metrics.get("test_accuracy"),
            "validation": metrics.get("val_accuracy"),
        },
        "input": {
            "shape": ["batch", *inputs.shape],
            "dtype": "int64" if inputs.kind == TOKENS else "float32",
            "preparation": _PREPARATIONS[how],
        },
        "output": "logits (batch, classes); their softmax is the probabilities",
        **about,
    }


NETWORK = "network"  # the folder, in an exported one, of a network's config and tokenizer


def _blank(architecture: str) -> str:
    """Return an architecture without the place of its weights, which the exported file has."""
    named = parse(architecture)
    inside = f"{FOLDER}{NETWORK}" if named.plain.startswith(FOLDER) else named.plain
    words = [named.structure.replace(named.plain, inside, 1), "frozen" * named.frozen]
    words.append("untrained" * (named.partly or inside != named.plain))
    return " ".join(filter(None, words))


# --- writing ------------------------------------------------------------------------------------


def export(
    folder: Path, out: Path, *, best: bool = False, onnx: bool = False, trust: bool = False
) -> Path:
    """Write the model of :func:`load_model` to the new folder ``out``; return its path.

    With ``onnx`` also ``model.onnx``, which must answer as torch does. Raise UserError as there.
    """
    packages = ("onnx", "onnxruntime", "onnxscript") if onnx else ()
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"--onnx needs {', '.join(missing)}: pip install 'fedhet[onnx]'")
    out = _new(out, "folder")
    model, card = load_model(folder, best=best, trust=trust)
    weights = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    data = save(weights)
    card = {k: v for k, v in card.items() if k not in {plugins.MAC, "onnx"}}
    card["sha256"] = hashlib.sha256(data).hexdigest()
    with files.appearing(out) as target:  # private: a model trained on private images is, too
        (target / WEIGHTS).write_bytes(data)
        if (plain := parse(model.architecture).plain).startswith(FOLDER):
            (target / NETWORK).mkdir()
            for file in folder_of(plain).iterdir():  # config and tokenizer
                if file.suffix in {".json", ".txt", ".model"} and ".index." not in file.name:
                    shutil.copyfile(file, target / NETWORK / file.name)
        if onnx:
            card["onnx"] = _write_onnx(model, target / ONNX)
        card[plugins.MAC] = plugins.sign(card)
        text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
        (target / CARD).write_text(text, encoding="utf-8")
    return out


def _write_onnx(model: Personalised, path: Path) -> dict[str, Any]:
    """Write a model as ONNX in float32; return what the card says; UserError if torch differs."""
    rng, inputs, name = np.random.default_rng(0), model.inputs, _ONNX_NAMES[model.inputs.kind]
    shape = (64, *inputs.shape)
    drawn: Any = rng.normal(size=shape).astype(np.float32)
    if inputs.kind == TOKENS:
        texts = [" ".join(map(str, row)) for row in rng.integers(0, 10**6, shape)]
        drawn = token_ids(texts, inputs).astype(np.int64)
        if not any(isinstance(one, TokenModel) for one in model.modules()):
            drawn = drawn[:, -shape[1] :]  # nothing reads the run's hash, whose ids stand in front
    examples = torch.from_numpy(drawn)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the converter's steps, and warnings about operators
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                model, (examples[:2],), input_names=[name], output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},), dynamo=True,
            )  # fmt: skip
            program.save(path, external_data=False)  # one file, that can be handed on
            (logits,) = program(examples)
    finally:
        logging.disable(level)
    with torch.inference_mode():
        expected = model(examples)
    difference = float((logits - expected).abs().max())
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise UserError(f"--onnx: logits differ from torch's by {difference:.3g} on random inputs")
    return {"file": ONNX, "input": name, "shape": ["batch", *drawn.shape[1:]], "output": "logits",
            "precision": "fp32", "max-logit-difference": difference}  # fmt: skip


def export_predictions(run: Path, out: Path, *, trust: bool = False) -> int:
    """Write what clients of a run with ``keep-predictions`` answered, as one CSV; return its rows.

    Columns: client, split (val or test), row (of the data set), y (the true class) and p_<class>.
    Raise UserError if there is nothing, or something at ``out``.
    """
    out, rows, classes = _new(out, "file"), list[list[Any]](), list[str]()
    for state in states_of(run, trust=trust):
        classes = [str(name) for name in _read_description(state)["classes"]]
        kept = FileStore(state, sync=False).kept(PREDICTIONS)
        for part in ("val", "test"):
            columns = (kept.get(f"{part}/{name}", torch.empty(0)) for name in ("row", "y", "p"))
            for row, y, shares in zip(*(one.tolist() for one in columns), strict=True):
                rows.append([state.name, part, row, classes[y], *shares])
    if not rows:
        raise UserError(f"'{run}' has no predictions: run with keep-predictions=true")
    head = ["client", "split", "row", "y", *(f"p_{name}" for name in classes)]
    files.write_text(out, files.csv_text([head, *rows]), private=True)
    return len(rows)


def predict(
    folder: Path, places: Sequence[Path], out: Path, *, best: bool = False, trust: bool = False
) -> Answers:
    """Classify files and folders of images, or files of rows, signals or texts; replace ``out``.

    ``folder`` is that of :func:`load_model`. ``out`` is a CSV with a line for each readable example
    and columns ``path`` (as given; of a file of many ``<path>:<line or index>``), ``class`` and
    ``p_<class>``. Raise UserError if one of them cannot be used, or nothing can be read.
    """
    model, _ = load_model(folder, best=best, trust=trust)
    out = out.expanduser()
    torch.set_num_threads(model.config.threads)  # as in the run: other threads, other last bits
    answers = classify(model, places)
    read = [*places, *answers.frame.index] if answers.what == "images" else places
    if out.exists() and any(Path(path).expanduser().samefile(out) for path in read):
        raise UserError(f"out: '{out}' is one of the files to classify: choose another name")
    rows = answers.frame.itertuples(name=None)
    lines = [[name, answer, *(f"{p:.6g}" for p in shares)] for name, answer, *shares in rows]
    text = files.csv_text([["path", *answers.frame.columns], *lines])
    with files.replacing(out, private=True, shared=True) as temporary:
        # Names of files need not be UTF-8; they leave as the bytes that they came as.
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
    return answers


def _new(out: Path, what: str) -> Path:
    out = files.plain_path(out)
    if out.exists():
        raise UserError(f"out: '{out}' already exists and is not overwritten: choose a new {what}")
    return out


def states_of(run: Path, *, trust: bool) -> list[Path]:
    """Return the state folders of a run's clients here, in client order."""
    folder = RunFolder(files.plain_path(run))
    if not folder.identity.exists():
        raise UserError(f"'{run}' is not a run folder: --predictions are of a whole run")
    there = folder.states(build_config(folder.opened(trust=trust)))
    states = [path.parent for path in there.glob(f"*/{DESCRIPTION}")]
    if not states:
        why = "keep-state=false deleted them, or they are on other machines"
        raise UserError(f"'{there}' has no states of clients: {why}")
    return sorted(states, key=lambda path: files.client_order(path.name))
