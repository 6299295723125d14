"""An environment that is not the developer's changes no result."""

from cli.refusals import refused
from engines.commands import WORK

from fedhet.engines.system import free_ports


def test_a_ray_that_nobody_answers_for_is_named_at_once(tmp_path, monkeypatch, capsys):
    """A run that does not say `engine` takes the cluster of RAY_ADDRESS."""
    (port,) = free_ports(1)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    line = refused(capsys, "run", "quickstart", *WORK, f"out={tmp_path / 'runs'}")
    assert f"RAY_ADDRESS: nothing answers at '127.0.0.1:{port}'" in line
    assert not (tmp_path / "runs").exists()
