"""Whether the figures that open clients' models are drawn, or why not; torch only if they are."""

from collections.abc import Sequence

from fedhet.reports.comparison import Comparison
from fedhet.reports.drawing import Picture, absent

NO_STATES = (
    "no run folder of this report has its clients' states (they need keep-state: true and the "
    "machine that trained; packed records have none)"
)
TSNE, ENHANCED = "t-SNE of test representations", "Original and enhanced images"


def modelled(comparisons: Sequence[Comparison], *, wanted: bool) -> list[Picture]:
    """t-SNE of representations, and pFedES' enhanced images."""
    folders = (run.folder for one in comparisons for arm in one.arms for run in arm.runs.values())
    if wanted and any(path and (path / "checkpoint" / "run.json").exists() for path in folders):
        from fedhet.reports.model_figures import of_models  # noqa: PLC0415  (imports torch)

        return of_models(comparisons)
    reason = NO_STATES if wanted else "left out by --no-models"
    return [absent("t-sne", TSNE, reason), absent("enhanced", ENHANCED, reason)]
