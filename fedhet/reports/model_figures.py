"""The figure that needs clients' models and examples: t-SNE of representations.

It is drawn for the first setting whose run folders still have the clients' states, and says why
it is absent where none has. States are opened as ``fedhet export`` opens them; torch is imported
only then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhet.errors import Damaged, UserError
from fedhet.reports.figures import HUES, Picture, drawn, label
from fedhet.reports.settings import Placed

if TYPE_CHECKING:
    from torch import Tensor

    from fedhet.config.schema import RunConfig
    from fedhet.export.model import Personalised

MOST_ARMS, MOST_CLIENTS, MOST_EXAMPLES = 4, 10, 1000
NO_STATES = (
    "no run folder of this report has its clients' states (they need keep-state: true and the "
    "machine that trained; packed records have none)"
)
TITLE = "t-SNE of test representations"
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class _Opened:
    """A run with the folders of its clients' states."""

    placed: Placed
    config: "RunConfig"
    states: dict[str, Path]


def t_sne(placed: Sequence[Placed], *, wanted: bool, trust: bool) -> Picture:
    """Draw the first setting that can be; ``trust`` imports code of others that a run names."""
    reason = NO_STATES if wanted else "left out by --no-models"
    for _, own in groupby(placed, key=lambda one: one.setting.slug) if wanted else ():
        if arms := _open_arms(list(own), trust=trust):
            try:
                return _draw(arms)
            except UserError as missing:
                reason = str(missing)
    return Picture("t-sne", TITLE, "", absent=reason)


def _open_arms(placed: Sequence[Placed], *, trust: bool) -> list[_Opened]:
    """The arms of a setting with a run that has states: the first such run of each."""
    found: dict[str, _Opened] = {}
    for one in placed:
        if one.arm not in found and (opened := _open(one, trust=trust)):
            found[one.arm] = opened
    return list(found.values())


def _open(placed: Placed, *, trust: bool) -> _Opened | None:
    path = placed.run.folder
    if path is None or not (path / "checkpoint" / "run.json").exists():
        return None
    from fedhet.config.load import build_config  # noqa: PLC0415
    from fedhet.records.run_folder import RunFolder  # noqa: PLC0415
    from fedhet.site.state import DESCRIPTION, FileStore  # noqa: PLC0415  (torch)

    folder = RunFolder(path)
    try:
        config = build_config(folder.opened(trust=trust))
        if not trust:
            folder.check_reach(config)
        there = {p.parent.name: p.parent for p in folder.states(config).glob(f"*/{DESCRIPTION}")}
    except (UserError, Damaged, OSError, ValueError, KeyError):
        return None
    kept = any(FileStore(state, sync=False).generations() for state in there.values())
    return _Opened(placed, config, there) if kept else None


def _examples(opened: _Opened, clients: Sequence[str], each: int) -> list[tuple["Tensor", Labels]]:
    """At most ``each`` test examples (n, ...) and labels of every client, evenly spread."""
    import torch  # noqa: PLC0415

    from fedhet.site.local_data import load_partition  # noqa: PLC0415

    run = opened.placed.run
    try:
        federation = int(run.summary.get("clients") or len(run.clients["client"]))
        dataset, partition = load_partition(opened.config, federation)
    except (UserError, Damaged, OSError) as error:
        raise UserError(f"the data of '{run.name}' cannot be read: {error}") from error
    found = []
    for client in clients:
        if client not in partition.ids:
            raise UserError(f"client '{client}' has its data elsewhere")
        test = partition.clients[partition.ids.index(client)].test
        chosen = test[np.linspace(0, len(test) - 1, min(each, len(test))).round().astype(int)]
        examples = torch.from_numpy(np.ascontiguousarray(dataset.examples[chosen]))
        found.append((examples, dataset.labels[chosen]))
    return found


# --- t-SNE ---------------------------------------------------------------------------------------


def _draw(arms: Sequence[_Opened]) -> Picture:
    from sklearn.manifold import TSNE as Embedding  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    chosen = arms[:MOST_ARMS]
    clouds = [_cloud(opened) for opened in chosen]
    with threadpool_limits(1):  # sums over threads would differ from run to run
        planes = [
            Embedding(2, perplexity=max(2.0, min(30.0, (len(points) - 1) / 3)), init="pca",
                      random_state=0, n_jobs=1).fit_transform(points)
            for points, *_ in clouds
        ]  # fmt: skip
        scores = [[_silhouette(c[0], c[1]), _silhouette(c[0], c[2])] for c in clouds]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(chosen), 2, squeeze=False)
        for row, (opened, plane, cloud, score) in enumerate(
            zip(chosen, planes, clouds, scores, strict=True)
        ):
            for ax, what, groups, value in zip(
                axes[row], ("by class", "by client"), cloud[1:], score, strict=True
            ):
                for number, group in enumerate(np.unique(groups)):
                    own = plane[groups == group]
                    ax.plot(own[:, 0], own[:, 1], ".", ms=4, mew=0, color=HUES[number % len(HUES)])
                ax.set(xticks=[], yticks=[])
                ax.set_title(f"{label(opened.placed.arm, 24)}, {what}: silhouette {value}",
                             fontsize=9, loc="left")  # fmt: skip
        figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 0.08 / len(chosen), 0.05, 0.12)

    first = chosen[0].placed
    caption = (
        f"{first.setting.title}, seed {chosen[0].config.seed}, {len(np.unique(clouds[0][2]))} "
        f"clients, {len(clouds[0][0])} test examples. Representations are what the header takes; "
        "silhouettes are those of the representations, not of the picture."
    )
    svg = drawn("t-sne", (560, 270 * len(chosen)), draw, TITLE)
    return Picture("t-sne", TITLE, caption, [("", svg)])


def _cloud(opened: _Opened) -> tuple[NDArray[np.float32], Labels, Labels]:
    """Representations (n, d) of an arm's test examples, with class and client of each."""
    from fedhet.export.save import open_state  # noqa: PLC0415

    run = opened.placed.run
    pairs = zip(run.clients["client"], run.clients["generation"], strict=True)
    trained = [c for c, generation in pairs if generation > 0 and c in opened.states][:MOST_CLIENTS]
    if not trained:
        raise UserError(f"'{run.name}' has no state of a client that was sampled")
    points, classes, clients = [], [], []
    tested = _examples(opened, trained, MOST_EXAMPLES // len(trained))
    for number, (client, (examples, labels)) in enumerate(zip(trained, tested, strict=True)):
        model = open_state(opened.states[client], trust=True).model  # trusted when opened
        points.append(representations(model, examples))
        classes.append(labels)
        clients.append(np.full(len(labels), number))
    if len({cloud.shape[1] for cloud in points}) > 1:
        raise UserError("the clients' representations have different widths")
    return np.concatenate(points), np.concatenate(classes), np.concatenate(clients)


def representations(model: "Personalised", examples: "Tensor") -> NDArray[np.float32]:
    """What the header that answers takes in: (n, d) for examples (n, ...) as they are stored."""
    import torch  # noqa: PLC0415

    from fedhet.training.loop import EVALUATION_BATCH, autocast  # noqa: PLC0415

    caught: dict[str, list[Tensor]] = {}

    def catch(name: str) -> Any:
        return lambda _module, inputs: caught.setdefault(name, []).append(inputs[0].float())

    hooks = [
        head.register_forward_pre_hook(catch(name))
        for name, part in model.parts.items()
        if isinstance(head := getattr(part, "head", None), torch.nn.Module)
    ]
    with torch.inference_mode():
        for part in torch.split(examples, EVALUATION_BATCH):
            with autocast(model.config, part.device):
                model(model.prepare(part))
    for hook in hooks:
        hook.remove()
    if not caught:
        raise UserError("the inference model has no header of its own")
    own = caught.get("model") or next(iter(caught.values()))
    return torch.cat(own).numpy()


def _silhouette(points: NDArray[np.float32], labels: Labels) -> str:
    """The mean silhouette, or a dash where there is only one group."""
    from sklearn.metrics import silhouette_score  # noqa: PLC0415

    known = 1 < len(np.unique(labels)) < len(labels)
    return f"{silhouette_score(points, labels):.2f}" if known else "-"
