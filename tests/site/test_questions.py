"""Who asks decides what leaves: what a site with limits answers to a run that asks for more."""

import json
import re

import pytest
from helpers.tiny import deployed, tiny

from fedhet import client_app
from fedhet.cli.app import execute
from fedhet.config.load import build_config, envelope
from fedhet.protocol.flower import be_task, posted, simulating
from fedhet.protocol.messages import Instruction, request
from fedhet.site.limits import NAME, History, asked, begin_anew
from fedhet.testing import LocalGrid, simulate

ROWS = 60
PLAIN = {"dataset": "table", "target": "ill", "classes": ["0", "1"], "models": ["mlp-1"],
         "data-path": "at-the-site.csv",
         "clients": 3, "rounds": 1}  # fmt: skip
LIMITS = "target: ill\nclasses: ['0', '1']\ncolumns: [age, chol, ill]\n"


@pytest.fixture
def site(tmp_path):
    """A hospital with 60 patients; ``ask`` is what a run gets in the handshake."""
    row = "{},{},{:d},{},{}\n".format
    rows = (row(20 + n % 50, 150 + 3 * n, n % 3 == 0, "ab"[n % 2], n % 7) for n in range(ROWS))
    (tmp_path / "own.csv").write_text("".join(["age,chol,ill,ward,bmi\n", *rows]))
    return Site(tmp_path)


class Site:
    def __init__(self, folder):
        be_task()
        self.folder = folder
        self.node = {"data-dir": str(folder / "own.csv"), "name": "h",
                     "state-dir": str(folder / "state")}  # fmt: skip
        self.history = folder / "state" / NAME

    def limit(self, text):
        (self.folder / "limits.yaml").write_text(text)
        self.node["limits"] = str(self.folder / "limits.yaml")

    def ask(self, experiment="run-1", **changes):
        values = PLAIN | {"ignore": ["ward", "bmi"]}
        values |= {k.replace("_", "-"): v for k, v in changes.items()}
        reply = self.send(request("query", 100, Instruction(experiment), 60), values)
        assert set(reply.content) == {"info"}
        return dict(reply.content.config_records["info"].items())

    def send(self, message, values):
        context = LocalGrid(envelope(build_config(values), {}), 1).contexts[100]
        context.node_config.clear()
        context.node_config.update(self.node)
        posted(message)
        with simulating(answer=False):
            return client_app.app(message, context)

    def refused(self, limit, **changes):
        info = self.ask(**changes)
        assert (info["error"], info["about"]) == ("limit", limit), info
        assert set(info) == {"error", "log", "state-lost", "about"}


@pytest.mark.parametrize(("limit", "changes"), [
    ("target", {"target": "age", "labels": {"low": ["..47"], "high": ["47.."]}, "classes": []}),
    ("classes", {"labels": {"0": ["..0.5"], "1": ["0.5.."]}, "classes": []}),
    ("classes", {"labels": {"0": ["0"], "1": ["1"]}}),
    ("classes", {"classes": ["0"]}),
    ("columns", {"ignore": ["ward"]}),
    ("columns: the run reads 'ward'", {"site": ["ward"], "ignore": ["bmi"]}),
    ("form", {"group": ["age"], "gaps": ["20"]}),
    ("form", {"columns": ["ill", "chol", "age", "ward", "bmi"]}),
    ("columns: the run reads 'ward'", {"categories": {"ward": ["a", "b"]}, "ignore": ["bmi"]}),
    ("columns: the run reads 'weight'", {"numbers": ["age", "chol", "weight"]}),  # there is none
])  # fmt: skip
def test_a_run_that_asks_for_more_than_the_limits_name_learns_nothing(site, limit, changes):
    site.limit(LIMITS)
    assert site.ask()["train-images"] > 0
    site.refused(limit, **changes)


def test_spellings_of_a_gap_count_a_columns_values_where_nothing_limits_them(site):
    """A row without its group is left out: whoever names the gap asks for the ages of patients."""
    both = [site.ask(group=["age"], gaps=gaps)["train-images"] for gaps in (["none"], ["20"])]
    assert both[0] > both[1]  # there are patients who are 20
    site.limit("columns: [age, chol, ill]\ngroup: [age]\nform: {gaps: [none]}")
    assert site.ask(group=["age"], gaps=["none"])["train-images"] == both[0]
    site.refused("form", group=["age"], gaps=["20"])
    site.refused("group", gaps=["none"])


def test_labels_are_compared_with_their_ranges(site):
    site.limit("labels: {ill: [1], healthy: [0]}")
    assert "seen" in site.ask(labels={"ill": ["1"], "healthy": ["0"]}, classes=[])
    site.refused("labels", labels={"ill": ["..0.2"], "healthy": ["0.2.."]}, classes=[])


def test_a_rare_class_is_absent_and_not_zero(site):
    """The bisection of a column ends at five patients: nothing tells that there are fewer."""
    ranges = {"low": ["..22"], "high": ["22.."]}  # four patients of 20 and 21, three to train
    told = site.ask(target="age", labels=ranges, classes=[])
    assert told["seen"] == ["high"] and len(told["images"]) == 1
    assert told["train-images"] == told["images"][0]
    site.limit("min-class: 1")
    assert site.ask(target="age", labels=ranges, classes=[])["seen"] == ["low", "high"]
    site.limit("min-class: 100")
    site.refused("min-class")


def test_questions_are_counted_and_the_same_one_is_answered_again(site):
    site.limit("max-queries: 2")
    assert all("seen" in site.ask(seed=seed) for seed in (1, 2, 1, 2))
    site.refused("max-queries", seed=3)
    site.refused("max-queries", experiment="run-2")
    assert "seen" in site.ask(seed=1)
    lines = [json.loads(line) for line in site.history.read_text().splitlines()]
    own = "; ".join(("answered", "32 of '0', 16 of '1'", "columns: age, chol"))
    assert [line["answer"].partition(":")[0] for line in lines[2:]] == ["refused", "refused"]
    assert [line["answer"] for line in lines[:2]] == [own, own]
    words = ("run-1", "fedssa", 'target="ill"', 'classes=["0", "1"]', "rounds=1")
    assert all(word in asked(lines[2]) for word in words) and "max-queries" in lines[2]["answer"]


def test_a_history_that_is_gone_or_damaged_allows_no_counted_run(site):
    site.limit("max-runs: 3")
    assert "seen" in site.ask()
    site.history.unlink()
    (site.folder / "state" / "run-0" / "h").mkdir(parents=True)
    (site.folder / "state" / "run-0" / "h" / "client.json").write_text("{}")
    site.refused("max-runs")
    site.history.write_text("{\n")
    assert site.ask()["error"] == "state"


@pytest.mark.parametrize("limit", ["secure-sum: required", "min-sum: 3", "min-sum-noise: 0.1"])
def test_a_limit_on_sums_needs_a_certificate(site, limit):
    """Without one a server could invent the other members, and learn the single upload."""
    site.limit(limit)
    noise = {"dp_clip": 1.0, "dp_epsilon": 5.0, "dp_delta": 1e-3, "secure_sum": "masked"}
    site.refused(limit.partition(":")[0], **noise)


def test_history_and_state_folder_have_a_limit_and_only_questions_are_noted(site, monkeypatch):
    site.send(request("query", 100, Instruction("run-1", refused="no"), 60), PLAIN)
    assert not site.history.exists()
    site.limit("max-disk: 1000")
    assert "seen" in site.ask()
    (site.folder / "state" / "large").write_bytes(bytes(2000))
    site.refused("max-disk")
    del site.node["limits"]
    monkeypatch.setattr("fedhet.site.limits.MOST_LINES", 2)
    assert "seen" in site.ask() and site.ask(seed=1)["error"] == "state"


def test_runs_are_counted_and_their_epsilon_is_added_up(tmp_path):
    """Three fresh runs of epsilon 8 each spend 16 of 20: the third is refused."""
    noise = {"dp_clip": 1.0, "dp_epsilon": 8.0, "dp_delta": 1e-3, "rounds": 1}
    path = tmp_path / "limits.yaml"

    def replied(name, text, **changes):
        path.write_text(text)
        config = tiny(tmp_path, start_timeout=1.0, name=name, **noise | changes)
        before = deployed(tmp_path, {1: {"limits": str(path)}})
        folder, _ = simulate(config, before=before, simulated=False)
        return folder.read_rounds()[0]["replied"]

    assert [replied(f"run{k}", "total-epsilon: 20") for k in range(3)] == [3, 3, 2]
    history = History(tmp_path / "states" / "101")
    assert history.epsilon("") == pytest.approx(16.0, rel=1e-6) and len(history.runs()) == 2
    assert replied("run3", "max-runs: 2") == 2 and replied("run4", "max-runs: 3") == 3
    assert replied("run5", "total-epsilon: 100", dp_clip=0.0, dp_epsilon=0.0, dp_delta=0.0) == 2


def test_a_training_message_of_a_run_without_handshake_is_a_question_too(site):
    """A server that leaves the handshake out gains nothing."""
    site.limit("max-queries: 1")
    assert "seen" in site.ask()
    message = request("train", 100, Instruction("run-9", round=1, classes=("0", "1")), 60)
    info = site.send(message, PLAIN | {"seed": 9}).content["info"]
    assert (info["error"], info["about"]) == ("limit", "max-queries")


def test_the_limits_that_are_drafted_allow_the_sites_own_preset_and_no_other_question(site, capsys):
    place, preset = site.folder, PLAIN | {"ignore": ["ward", "bmi"], "data-path": ""}
    (place / "own.yaml").write_text(json.dumps(preset))
    words = ["node", str(place / "h"), "--data", site.node["data-dir"], "--preset"]
    words += [str(place / "own.yaml"), "--write-limits", str(place / "limits.yaml")]
    assert execute(words) == 0 and execute(words) == 2  # nothing is overwritten
    site.node["limits"] = str(place / "limits.yaml")
    assert "seen" in site.ask()
    site.refused("classes", labels={"0": ["0"], "1": ["1"]})
    site.refused("columns", ignore=["ward"])
    site.refused("max-rounds", rounds=2)
    capsys.readouterr()
    assert execute(["node", str(place / "h"), "--state", str(place / "state"), "--history"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] == " " * 4 for line in lines] == [False, True] * 4  # each question once
    assert "handshake: answered" in lines[1] and "columns: age, chol" in lines[1]
    assert "max-rounds" in lines[7]


def test_the_history_names_all_that_a_run_was_sent_each_once(tmp_path):
    """A site's data protection officer reads what left: counts, uploads, figures, answers."""
    for name, sums in (("plain", {}), ("masked", {"secure_sum": "masked", "sum_min": 2})):
        config = tiny(tmp_path, rounds=2, name=name, **sums)
        simulate(config, before=deployed(tmp_path / name), simulated=False)
    plain, masked = (
        {line["stage"]: line["answer"] for line in History(tmp_path / n / "states/101").lines}
        for n in ("plain", "masked")
    )
    assert list(plain) == ["handshake", "training", "confusion matrix"]
    words = "answered; [0-9,]+ bytes of the method"
    assert re.match(f"{words}, num-examples, .*test_accuracy", plain["training"])
    assert re.fullmatch("answered; [0-9]+ test examples by .*", plain["confusion matrix"])
    assert list(masked) == ["handshake", "owners of classes", "training", "confusion matrix"]
    assert masked.pop("handshake") == "answered; no class and no count; columns: none"
    assert all(re.fullmatch(words, one) for one in masked.values())


@pytest.mark.parametrize("known", ['{"digest": "of other data"}', None])
def test_other_data_are_noticed_until_the_node_begins_anew(tmp_path, known):
    """A masked run tells no counts: only the node itself can see that its data are others."""

    def change(number, message, reply):
        if number == 1 and message.metadata.message_type == "train":
            for note in (tmp_path / "states" / "101").glob("*/1/data.json"):
                note.write_text(known) if known else note.unlink()
        return reply

    config = tiny(tmp_path, rounds=2, secure_sum="masked", sum_min=2)
    folder, _ = simulate(config, before=deployed(tmp_path), tamper=change, simulated=False)
    reasons = [f["reason"] for record in folder.read_rounds() for f in record["failures"]]
    assert any("other data than before" in reason for reason in reasons)
    old = History(tmp_path / "states" / "101").lines
    aside = begin_anew(tmp_path / "states" / "101")
    assert History(aside).lines == old and not History(aside.parent).lines
    assert begin_anew(aside.parent) is None and not History(aside.parent).missing()
