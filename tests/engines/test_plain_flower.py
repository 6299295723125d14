"""Plain ``flwr run``: what a person sees who makes a mistake."""

import sys
import traceback

import pytest
import torch
from flwr.app import Context, RecordDict

from fedhet import server_app
from fedhet.errors import UserError


@pytest.mark.parametrize(("text", "lines"), [("", 1), ('{"config": {"mu": 1}, "run": {}}', 4)])
def test_a_mistake_comes_without_a_traceback(monkeypatch, text, lines):
    """Flower prints what the ServerApp raised; of `fedhet run` the log has it as a whole."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    monkeypatch.setattr(server_app, "_log_to_stderr", lambda: None)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), series_id=0,
        run_config={"config": text, "method": "fedproto", "mu0": 0.3, "lam": ""},
    )  # fmt: skip
    threads = torch.get_num_threads()
    with pytest.raises(UserError, match="only method") as error:
        server_app.app(None, context)
    torch.set_num_threads(threads)
    shown = "".join(traceback.format_exception(error.value)).splitlines()
    assert (len(shown) == 1) if lines == 1 else (len(shown) >= lines), shown
