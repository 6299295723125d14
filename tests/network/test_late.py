"""A site that is slower than the others: rounds a minute with and without waiting for it."""

import pytest

pytestmark = pytest.mark.network
SLOW = """
import time
from fedhet.models.zoo import build_model

def make(classes, d, inputs):
    model = build_model("cnn-5", classes=classes, d=d, inputs=inputs)
    model.register_forward_pre_hook(lambda *_: time.sleep(6.0) if model.training else None)
    features = model.features
    model.features = lambda x: (time.sleep(6.0) if model.training else None, features(x))[1]
    return model
"""


def test_a_slow_site_does_not_hold_up_the_others(federation, capsys):
    federation.whole()
    (federation.modules / "slow_site.py").write_text(SLOW)
    models = {"models": "[cnn-5, cnn-5, 'slow_site:make']", "rounds": 5, "lr": 0.05}
    figures = {}
    for late in ("drop", "next"):
        run = federation.run(f"late-{late}", late=late, late_after=5, min_replies=2, **models)
        summary = run.result()
        assert summary["failures"] == []
        seconds = [record["seconds"] for record in run.rounds()]
        figures[late] = (60 * (len(seconds) - 1) / sum(seconds[:-1]), run, summary)
    (before, _, _), (after, run, summary) = figures["drop"], figures["next"]
    records = run.rounds()
    late = [reply for record in records for reply in record.get("late", [])]
    assert "2" in {reply["client"] for reply in late}
    assert all(reply["weight"] == 0.5 ** (r["round"] - reply["round"])
               for r in records for reply in r.get("late", []))  # fmt: skip
    assert after > 1.5 * before
    assert federation.do("verify", str(run.folder)).returncode == 0
    with capsys.disabled():
        accuracies = {k: f"{s['test_accuracy_mean']:.1f}" for k, (_, _, s) in figures.items()}
        print(f"rounds a minute: {before:.1f} and {after:.1f}; accuracy {accuracies}")
