"""The metrics of one evaluation, all from the logits of one pass, on the device.

Sorting, softmax and sums are in float64. Of them accuracies alone are in the hash chain.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhet import plugins
from fedhet.config.schema import MAJORITY, RunConfig
from fedhet.errors import UserError
from fedhet.training.loop import Examples, autocast, pieces

Predict = Callable[[Tensor], Mapping[str, Tensor]]
BINS = 15  # of the calibration error
_ENTRIES = 1 << 20  # that AUROC sorts at a time


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of a client's predictions on a split of n examples.

    ``metrics`` are in percent, ``log_loss`` in nats; one that is not defined is absent.
    ``logits`` (n, C) float32 and ``labels`` (n,) int64 are on the device.
    """

    metrics: Mapping[str, float]
    logits: Tensor
    labels: Tensor

    def probabilities(self) -> Tensor:
        """Return class probabilities (n, C) float64, on the CPU."""
        return self.logits.double().softmax(dim=1).cpu()

    def confusion(self) -> Tensor:
        """Return examples (C, C) int64 by true class (row) and answer (column), on the CPU."""
        classes = self.logits.shape[1]
        answers = self.labels * classes + self.logits.argmax(dim=1)
        return torch.bincount(answers.cpu(), minlength=classes**2).view(classes, classes)


@torch.inference_mode()
def evaluate(
    predict: Predict, data: Examples, config: RunConfig, majority: int | None = None
) -> EvaluationResult:
    """Evaluate ``predict`` on a whole split, which is not empty.

    ``predict`` gives logits (B, C) by name; those named "" are the client's answer. Each other
    one gets ``accuracy_<name>``. ``majority`` is the commonest class of the train split.
    """
    labels, parts = data.labels, dict[str, list[Tensor]]()
    for index in pieces(data):
        inputs, _ = data.batch(index)
        with autocast(config, labels.device):
            for name, logits in predict(inputs).items():
                parts.setdefault(name, []).append(logits)
    figures: dict[str, Tensor] = {}
    for name, chunks in parts.items():
        right = torch.cat(chunks).argmax(dim=1) == labels
        figures[f"accuracy_{name}".rstrip("_")] = 100 * right.double().sum() / len(data)
    figures |= metrics_of(answers := torch.cat(parts[""]).float(), labels)
    if majority is not None:
        figures[MAJORITY] = 100 * (labels == majority).double().mean()
    pairs = zip(figures, torch.stack([*figures.values()]).tolist(), strict=True)  # the one wait
    return EvaluationResult(
        {n: value for n, value in pairs if math.isfinite(value)}, answers, labels
    )


def own_metrics(result: EvaluationResult, config: RunConfig) -> dict[str, float]:
    """Return the run's ``metrics`` by name, finite ones; UserError for one that is no number."""
    labels, probabilities = result.labels.cpu().numpy(), result.probabilities().numpy()
    figures = {}
    for name, (function,) in config.metrics:
        value = plugins.load("metric", function)(labels, probabilities)
        try:
            figures[name] = float(value)
        except (TypeError, ValueError) as error:
            what = f"'{name}' returns a {type(value).__name__}, must be a number"
            raise UserError(f"metrics: {what}") from error
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def metrics_of(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return metrics of logits (n, C) beside accuracy; NaN or infinity if not defined."""
    count, classes = logits.shape
    logs = logits.double().log_softmax(dim=1)
    largest, answers = logs.max(dim=1)
    right = answers == labels
    rows = torch.zeros(3, classes, dtype=torch.float64, device=logits.device)
    ones = torch.ones(count, dtype=torch.float64, device=logits.device)
    support = rows[0].index_add_(0, labels, ones)
    answered = rows[1].index_add_(0, answers, ones)
    hits = rows[2].index_add_(0, labels, right.double())
    confidence = largest.exp()
    bins = (confidence * BINS).ceil().nan_to_num().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64, device=logits.device)
    gaps.index_add_(0, bins, confidence - right.double())
    several = torch.where((support > 0).sum() > 1, 1.0, torch.nan)
    return {
        "balanced_accuracy": 100 * (hits / support).nanmean() * several,
        "macro_f1": 100 * (2 * hits / (support + answered)).nanmean(),
        "auroc": 100 * _auroc(logs.exp(), labels),
        "log_loss": -logs.gather(1, labels[:, None]).mean(),
        "ece": 100 * gaps.abs().sum() / count,
    }


def _auroc(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the ROC curve, of the last of two classes, else the mean of those."""
    count, classes = probabilities.shape
    columns = torch.arange(classes, device=labels.device)
    if classes == 2:
        columns = columns[1:]
    areas = []
    for block in torch.split(columns, max(1, _ENTRIES // count)):
        scores = probabilities[:, block].T.contiguous()
        ordered = scores.sort(dim=1).values
        below = torch.searchsorted(ordered, scores)
        ranks = (below + torch.searchsorted(ordered, scores, right=True) + 1) / 2.0
        positive = (labels == block[:, None]).double()
        positives = positive.sum(dim=1)
        above = (ranks.double() * positive).sum(dim=1) - positives * (positives + 1) / 2
        areas.append(above / (positives * (count - positives)))  # NaN: in none or all examples
    return torch.cat(areas).nanmean() + 0 * probabilities.sum()  # NaN where a probability is
