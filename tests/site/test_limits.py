"""What a site allows wins over any run."""

import re
from unittest.mock import Mock

import pytest
from helpers.tiny import deployed, tiny

from fedhet import client_app
from fedhet.config.load import envelope
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.site.limits import Limits, read_limits
from fedhet.testing import LocalGrid, simulate

NOISE = {"dp_clip": 1.0, "dp_epsilon": 50.0, "dp_delta": 1e-3}


def limited(tmp_path, text, **changes):
    """A run whose client 1 has these limits; returns its lines and what that client refused."""
    path = tmp_path / "limits.yaml"
    path.write_text(text)

    def listen(node, message, reply):
        record = reply.content.config_records["info"]
        if node == 1 and "error" in record:
            said.append((message.metadata.message_type, str(record["error"])))
        return reply

    said = []
    config = tiny(tmp_path, start_timeout=1.0, **{"rounds": 1, "representation": 500} | changes)
    before = deployed(tmp_path, {1: {"limits": str(path)}})
    folder, _ = simulate(config, tamper=listen, before=before)
    return folder.read_rounds(), said


MASKED = {"secure_sum": "masked"}
SUMS = MASKED | {"sum_min": 2}
BROKEN = (
    ("max-epochs: 1", {"local_epochs": 2}, "max-epochs: this site allows 1, and local-epochs"),
    ("max-epochs: 2", {"method": "pfedes"}, "max-epochs: .* extractor-epochs is"),
    ("max-rounds: 1", {"rounds": 2}, "max-rounds: this site allows 1, and rounds is 2"),
    ("methods: [fedproto, fd]", {}, "methods: this site allows fedproto, fd, and method is"),
    ("shared-models: false", {"method": "fml"}, "shared-models: .* fml shares a model"),
    ("min-noise: 0.5", {}, "min-noise: this site allows at least 0.5, and the run has 0"),
    ("min-noise: 0.5", NOISE, "min-noise: .* the run has 0.1"),
    ("secure-sum: required", {}, "secure-sum: this site allows only masked sums, and"),
    ("secure-sum: required", SUMS, "secure-sum: .* sum-min is 2"),
    ("secure-sum: required", MASKED | {"sum_metrics": False}, "secure-sum: .* sum-metrics is"),
    ("secure-sum: required", MASKED | {"sum_owners": 2}, "secure-sum: .* sum-owners is 2"),
    ("min-sum: 4", SUMS, "min-sum: .* a round has 3 clients"),
    ("min-sum-noise: 5", SUMS | NOISE, "min-sum-noise: .* at least 5, and the run has 0.1"),
    ("min-noise: 0.05", SUMS | NOISE, "min-noise: .* for which min-sum-noise is"),
)


def test_a_run_that_breaks_a_limit_is_refused_in_the_handshake(tmp_path):
    path = tmp_path / "limits.yaml"
    for number, (text, changes, reason) in enumerate(BROKEN):
        path.write_text(text)
        config = tiny(tmp_path, **changes)
        grid, roster = LocalGrid(envelope(config, {}), 3), Roster()
        grid.contexts[101].node_config["limits"] = str(path)
        Handshake(grid, "x", roster, config, str(tmp_path / f"states-{number}")).query()
        assert roster.ids == ["0", "2"]
        assert re.search(f"limit {reason}", roster.refused[101]), text


@pytest.mark.parametrize(("text", "changes"), [
    ("max-epochs: 1", {"method": "fedtgp", "server_epochs": 2}),  # of the server's
    ("max-epochs: 1", {"local_steps": 1, "local_epochs": 10}),  # which have no effect then
    ("max-epochs: 1\nmax-rounds: 1\nmethods: [fedssa]\nshared-models: false\n"
     "min-noise: 0.05\nmin-sum-noise: 5\nmax-upload-bytes: 100000", NOISE),
    ("max-epochs: 1\nmin-sum: 3\nsecure-sum: required\nmin-sum-noise: 0.05", MASKED | NOISE),
])  # fmt: skip
def test_a_run_within_the_limits_goes_on(tmp_path, text, changes):
    rounds, said = limited(tmp_path, text, **changes)
    assert said == [] and rounds[0]["replied"] == 3 and rounds[0]["failures"] == []


@pytest.mark.parametrize(("way", "decoded"), [("upload", 3), ("download", 2)])
def test_what_is_too_large_does_not_leave_nor_is_it_decoded(tmp_path, monkeypatch, way, decoded):
    watched = Mock(side_effect=client_app.read_arrays)
    monkeypatch.setattr(client_app, "read_arrays", watched)
    rounds, [(kind, text)] = limited(tmp_path, f"max-{way}-bytes: 1000")
    assert kind == "train" and f"limit max-{way}-bytes: this site allows 1000, and it is" in text
    assert watched.call_count == decoded and rounds[0]["replied"] == 2


def test_a_file_that_cannot_be_understood_allows_nothing_and_none_everything(tmp_path):
    path = tmp_path / "secret-place.yaml"
    for text in (None, "max-epoch: 3", "max-epochs: many", "[1, 2]", "a: b: c", ""):
        if text is not None:
            path.write_text(text)
        with pytest.raises(Exception, match="^limits: the file of this site") as error:
            read_limits({"limits": str(path)})
        assert "secret" not in str(error.value), text
    assert read_limits({}) == Limits()
