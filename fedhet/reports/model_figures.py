"""The figures that need clients' models and images, not only records.

Each is drawn for the first setting whose run folders still have what it needs, and says why it is
absent where none has. Nothing is trained: states are opened as ``fedhet export`` opens them.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fedhet.data.inputs import IMAGE, kind_of, noun
from fedhet.data.preparation import normalise
from fedhet.errors import UserError, VerifyError
from fedhet.export.model import Personalised, rebuild
from fedhet.export.save import open_state
from fedhet.reading.structured import read_json
from fedhet.records.checkpoint import load_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.reports.comparison import Comparison, final
from fedhet.reports.drawing import WIDTH, Picture, absent, drawn
from fedhet.reports.model_gate import ENHANCED, NO_STATES, TSNE
from fedhet.reports.run_models import Labels, Missing, Opened, examples_of, open_runs
from fedhet.reports.settings import Arm
from fedhet.reports.svg import HUES, Drawing
from fedhet.site.state import DESCRIPTION, StateError
from fedhet.training.loop import EVALUATION_BATCH, autocast

MOST_ARMS, MOST_CLIENTS, MOST_IMAGES = 4, 10, 1000
EXAMPLES = 5  # images beside their enhanced selves, as in pFedES' paper
_ROW, _SIDE = 240.0, 84.0  # pixels: a row of clouds, an image
Points = NDArray[np.float32]


@dataclass(frozen=True)
class _Cloud:
    """Representations (n, d) of an arm's test examples, with class and client of each."""

    arm: Arm
    points: Points
    classes: Labels
    clients: Labels


def of_models(comparisons: Sequence[Comparison]) -> list[Picture]:
    """t-SNE of representations, and pFedES' enhanced images."""
    named = (("t-sne", TSNE, _t_sne), ("enhanced", ENHANCED, _enhanced))
    made = []
    for name, title, draw in named:
        reasons = [NO_STATES]
        for one in comparisons:
            try:
                made.append(draw(name, one))
                break
            except Missing as reason:
                reasons.append(f"{reason}")
        else:
            known = [reason for reason in reasons if reason != NO_STATES]
            made.append(absent(name, title, known[0] if known else NO_STATES))
    return made


# --- t-SNE -------------------------------------------------------------------------------------


def _t_sne(name: str, one: Comparison) -> Picture:
    chosen = _best(one, open_runs(one))
    clouds = [_cloud(opened) for opened in chosen]
    shown = [_embed(cloud.points) for cloud in clouds]
    numbers = [(_silhouette(c.points, c.classes), _silhouette(c.points, c.clients)) for c in clouds]

    def draw(panel: Drawing) -> None:
        for row, (cloud, plane, (by_class, by_client)) in enumerate(
            zip(clouds, shown, numbers, strict=True)
        ):
            top, who = row * _ROW, cloud.arm.name
            title = f"{who}, by class: silhouette {by_class}"
            _scatter(panel, (0.0, top), plane, cloud.classes, title)
            title = f"by client: silhouette {by_client}"
            _scatter(panel, (WIDTH / 2, top), plane, cloud.clients, title)

    first = chosen[0]
    caption = (
        f"{one.setting.title}, seed {first.config.seed}, "
        f"{len(set(clouds[0].clients.tolist()))} clients, {len(clouds[0].points)} test "
        f"{noun(first.config.dataset)}. "
        "Representations are what the answering header takes in; silhouettes are those of the "
        "representations, not of the picture."
    )
    return drawn(name, TSNE, caption, _ROW * len(clouds), draw)


def _best(one: Comparison, opened: Sequence[Opened]) -> list[Opened]:
    """The baseline and then the most accurate arms, as many as fit."""
    ranked = sorted(opened, key=lambda o: (o.arm is not one.baseline, -final(o.run), o.arm.order))
    return ranked[:MOST_ARMS]


def _cloud(opened: Opened) -> _Cloud:
    trained = [
        score.client for score in opened.run.clients
        if score.generation > 0 and score.client in opened.states
    ][:MOST_CLIENTS]  # fmt: skip
    if not trained:
        raise Missing(f"'{opened.run.name}' has no state of a client that was sampled")
    points, classes, clients = [], [], []
    tested = examples_of(opened, trained, MOST_IMAGES // len(trained))
    for number, (client, (examples, labels)) in enumerate(zip(trained, tested, strict=True)):
        try:
            model = open_state(opened.states[client]).model
        except UserError as error:
            raise Missing(str(error)) from error
        points.append(representations(model, examples))
        classes.append(labels)
        clients.append(np.full(len(labels), number))
    if len({cloud.shape[1] for cloud in points}) > 1:
        raise Missing("the clients' representations have different widths")
    return _Cloud(opened.arm, *(np.concatenate(part) for part in (points, classes, clients)))


@torch.inference_mode()
def representations(model: Personalised, examples: Tensor) -> Points:
    """What the header that answers takes in: (n, d) for examples (n, ...) as they are stored."""
    caught: dict[str, list[Tensor]] = {}

    def catch(name: str) -> Any:
        return lambda _module, inputs: caught.setdefault(name, []).append(inputs[0].float())

    hooks = [
        part.head.register_forward_pre_hook(catch(name))
        for name, part in model.parts.items()
        if hasattr(part, "head") and isinstance(part.head, nn.Module)
    ]
    try:
        for part in torch.split(examples, EVALUATION_BATCH):
            with autocast(model.config, part.device):
                model(model.prepare(part))
    finally:
        for hook in hooks:
            hook.remove()
    if not caught:
        raise Missing("the inference model has no header of its own")
    own = caught.get("model") or next(iter(caught.values()))
    return torch.cat(own).numpy()


def _embed(points: Points) -> Points:
    """(n, 2); one thread, since sums over threads would differ from run to run."""
    from sklearn.manifold import TSNE  # noqa: PLC0415  (a second at import)
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    perplexity = max(2.0, min(30.0, (len(points) - 1) / 3))
    with threadpool_limits(1):
        plane: Points = TSNE(
            2, perplexity=perplexity, init="pca", random_state=0, n_jobs=1
        ).fit_transform(points)
    return plane


def _silhouette(points: Points, labels: Labels) -> str:
    """The mean silhouette, or a dash where there is only one group."""
    from sklearn.metrics import silhouette_score  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    groups = len(np.unique(labels))
    if not 1 < groups < len(labels):
        return "-"
    with threadpool_limits(1):
        return f"{silhouette_score(points, labels):.2f}"


def _scatter(
    panel: Drawing, corner: tuple[float, float], plane: Points, labels: Labels, title: str
) -> None:
    """Dots in a square below a title; colours repeat after six groups, the silhouette does not."""
    left, top = corner
    size = WIDTH / 2 - 14
    panel.text(left, top + 12, title, "small")
    low, high = plane.min(axis=0), plane.max(axis=0)
    places = (plane - low) / np.maximum(high - low, 1e-9) * (size - 8) + 4
    for number, group in enumerate(np.unique(labels)):
        own = places[labels == group]
        spots = [(left + float(x), top + 20 + float(y)) for x, y in own]
        panel.dots(spots, f"s{1 + number % (len(HUES) - 1)}", 3)


# --- enhanced images ---------------------------------------------------------------------------


def _enhanced(name: str, one: Comparison) -> Picture:
    for opened in open_runs(one):
        made = _pictures(opened)
        if made is not None:
            break
    else:
        raise Missing("no method with states makes images of images (pFedES does)")
    originals, enhanced = made
    top = enhanced.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12)

    def draw(panel: Drawing) -> None:
        rows = (("original", originals.numpy()), ("enhanced", (enhanced / top).numpy()))
        for row, (title, shown) in enumerate(rows):
            high = row * (_SIDE + 20)
            panel.text(0, high + 12, title, "small")
            for column, image in enumerate(shown):
                _image(panel, (column * (_SIDE + 8), high + 16), image)

    caption = (
        f"{opened.arm.name}, {one.setting.title}; the global extractor after the last round, on a "
        "test image of each of the first clients. Enhanced images are not negative; each is "
        "divided by its highest value."
    )
    return drawn(name, ENHANCED, caption, 2 * (_SIDE + 20), draw)


def _pictures(opened: Opened) -> tuple[Tensor, Tensor] | None:
    """Test images (n, h, w, c) of each of the first clients, and what the extractor makes of them.

    None where the method has no extractor, or one that makes something else than images.
    """
    module = _extractor(opened)
    if module is None:
        return None
    if kind_of(opened.config.dataset) != IMAGE:
        raise Missing("the examples are no images")
    holders = [score.client for score in opened.run.clients if score.client in opened.states]
    images = [pixels for pixels, _ in examples_of(opened, holders[:EXAMPLES], 1)]
    originals = torch.cat(images)
    with torch.inference_mode():
        enhanced = module(normalise(originals))
    if enhanced.ndim != 4 or enhanced.shape[1] not in (1, 3):  # noqa: PLR2004
        return None
    return originals, enhanced.permute(0, 2, 3, 1)


def _image(panel: Drawing, corner: tuple[float, float], pixels: Any) -> None:
    """Pixels (h, w, 3 or 1), bytes or from 0 to 1, as an image without smoothing."""
    levels = pixels if pixels.dtype == np.uint8 else np.round(255 * np.clip(pixels, 0, 1))
    levels = levels[..., 0] if levels.shape[-1] == 1 else levels
    file = io.BytesIO()
    Image.fromarray(levels.astype(np.uint8)).save(file, "png")
    data = base64.b64encode(file.getvalue()).decode()
    panel.add(
        f'<image x="{corner[0]:g}" y="{corner[1]:g}" width="{_SIDE:g}" height="{_SIDE:g}" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _extractor(opened: Opened) -> nn.Module | None:
    """The server's global extractor, where the method has a module of that name."""
    state = next(iter(opened.states.values()))
    try:
        description = read_json(state / DESCRIPTION)
        module = rebuild(description, state).modules.get("extractor")
        kept = load_checkpoint(RunFolder(opened.run.folder or Path()).checkpoint)
        if module is None or kept is None:
            return None
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(torch.from_numpy(kept.arrays[name]))
    except (
        UserError,
        VerifyError,
        StateError,
        OSError,
        LookupError,
        RuntimeError,
    ) as error:
        raise Missing(f"the states of '{opened.run.name}' cannot be opened: {error}") from error
    made: nn.Module = module.eval()
    return made
