"""A package with entry points gives its methods, models and data sets names of their own."""

import json
import shutil

from fedhet import plugins
from fedhet.cli.app import execute

ENTRIES = """
[fedhet.methods]
tiny_rep = tiny_federated.fedrep:METHOD

[fedhet.models]
tiny_one = tiny_federated.tiny_net:make

[fedhet.datasets]
tiny_shapes = tiny_federated.shapes:load
"""


def test_its_method_model_and_data_set_have_names_of_their_own(
    examples, tmp_path, monkeypatch, capsys, request
):
    """The examples as pip leaves an installed package, in a folder on sys.path."""
    package = tmp_path / "site" / "tiny_federated"
    about = tmp_path / "site" / "tiny_federated-1.dist-info"
    about.mkdir(parents=True)
    shutil.copytree(examples, package)
    (package / "__init__.py").touch()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-federated\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(package.parent)
    plugins.installed.cache_clear()
    request.addfinalizer(plugins.installed.cache_clear)
    words = [
        "method=tiny_rep", "models=tiny_one", "dataset=tiny_shapes", "engine=inline", "rounds=2",
        "clients=2", "classes-per-client=2", "local-epochs=1", "batch-size=16", "--json",
    ]  # fmt: skip
    assert execute(["run", "quickstart", *words, "--out", str(tmp_path), "--name", "own"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["method"], summary["status"]) == ("tiny_rep", "completed")
    assert summary["failures"] == []
