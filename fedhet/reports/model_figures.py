"""The figure that needs clients' models and examples: t-SNE of representations.

It is drawn for the first setting whose run folders still have the clients' states, and says why
it is absent where none has. States are opened as ``fedhet export`` opens them; torch is imported
only then.
"""
# ruff: noqa: PLC0415  (torch and scikit-learn take seconds, and few reports draw models)

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhet.errors import Damaged, UserError
from fedhet.reports.figures import HUES, Picture, drawn, label
from fedhet.reports.reading import RunRecord
from fedhet.reports.settings import Placed

if TYPE_CHECKING:
    from torch import Tensor

    from fedhet.export.model import Personalised

MOST_VARIANTS, MOST_CLIENTS, MOST_EXAMPLES = 4, 10, 1000
NAME, TITLE = "t-sne", "t-SNE of test representations"
Cloud = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]  # points, class, client


def t_sne(placed: Sequence[Placed], *, wanted: bool, trust: bool) -> Picture:
    """Draw the first setting that can be; ``trust`` imports code of others that a run names."""
    reason = "packed records have no states of clients" if wanted else "left out by --no-models"
    for title, own in groupby(placed, key=lambda one: one.setting.title) if wanted else ():
        clouds: dict[str, Cloud] = {}
        for one in own:
            if one.variant in clouds or len(clouds) == MOST_VARIANTS or one.run.folder is None:
                continue
            try:
                clouds[one.variant] = _cloud(one.run, trust=trust)
            except (UserError, Damaged, OSError) as error:
                reason = f"'{one.run.name}': {error}"
        if clouds:
            return _draw(title, clouds)
    return Picture(NAME, TITLE, absent=reason)


def _cloud(run: RunRecord, *, trust: bool) -> Cloud:
    """Representations (n, d) of a run's test examples, evenly spread, with class and client."""
    import torch

    from fedhet.config.load import build_config
    from fedhet.export.model import load_model
    from fedhet.files import check_id
    from fedhet.records.run_folder import RunFolder
    from fedhet.site.local_data import load_partition

    assert run.folder is not None
    folder = RunFolder(run.folder)
    config = build_config(folder.opened(trust=trust))
    if not trust:
        folder.check_reach(config)
    clients = run.clients.loc[run.clients["generation"] > 0, "client"].iloc[:MOST_CLIENTS]
    states = [folder.states(config) / check_id(client, "client") for client in clients]
    models = [load_model(state, trust=trust)[0] for state in states]
    federation = int(run.summary.get("clients") or len(run.clients))
    dataset, partition = load_partition(config, federation)
    points, classes = [], []
    for client, model in zip(clients, models, strict=True):
        if client not in partition.ids:
            raise UserError(f"the examples of client '{client}' are not on this machine")
        test = partition.clients[partition.ids.index(client)].test
        count = min(MOST_EXAMPLES // len(clients), len(test))
        chosen = test[np.linspace(0, len(test) - 1, count).round().astype(int)]
        examples = torch.from_numpy(np.ascontiguousarray(dataset.examples[chosen]))
        points.append(representations(model, examples))
        classes.append(dataset.labels[chosen])
    if len({cloud.shape[1] for cloud in points}) != 1:
        raise UserError("the clients' representations have different widths, or none were made")
    owners = np.repeat(np.arange(len(points)), [len(cloud) for cloud in points])
    return np.concatenate(points), np.concatenate(classes), owners


def representations(model: "Personalised", examples: "Tensor") -> NDArray[np.float32]:
    """Return the inputs of the inference header: (n, d) for stored examples (n, ...)."""
    import torch

    from fedhet.training.loop import EVALUATION_BATCH, autocast

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
        raise UserError("the inference model has no header")
    return torch.cat(caught.get("model") or next(iter(caught.values()))).numpy()


def _draw(setting: str, clouds: dict[str, Cloud]) -> Picture:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums over threads would differ from run to run
        planes = [
            TSNE(2, perplexity=max(2.0, min(30.0, (len(points) - 1) / 3)), init="pca",
                 random_state=0, n_jobs=1).fit_transform(points)
            for points, *_ in clouds.values()
        ]  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(clouds), 2, squeeze=False)
        for row, plane, (variant, (points, *groups)) in zip(
            axes, planes, clouds.items(), strict=True
        ):
            for ax, what, group in zip(row, ("by class", "by client"), groups, strict=True):
                for number, one in enumerate(np.unique(group)):
                    own = plane[group == one]
                    ax.plot(own[:, 0], own[:, 1], ".", ms=4, mew=0, color=HUES[number % len(HUES)])
                ax.set(xticks=[], yticks=[])
                score = _silhouette(points, group)
                ax.set_title(f"{label(variant, 24)}, {what}: silhouette {score}",
                             fontsize=9, loc="left")  # fmt: skip
        figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 0.08 / len(clouds), 0.05, 0.12)

    points, _, clients = next(iter(clouds.values()))
    caption = (
        f"{setting}, {len(np.unique(clients))} clients, {len(points)} test examples. "
        "Representations are what the header takes; silhouettes are those of the representations, "
        "not of the picture."
    )
    svg = drawn(NAME, (560, 270 * len(clouds)), draw, TITLE)
    return Picture(NAME, TITLE, caption, [("", svg)])


def _silhouette(points: NDArray[np.float32], labels: NDArray[np.int64]) -> str:
    """Return the mean silhouette, or a dash where there is only one group."""
    from sklearn.metrics import silhouette_score

    known = 1 < len(np.unique(labels)) < len(labels)
    return f"{silhouette_score(points, labels):.2f}" if known else "-"
