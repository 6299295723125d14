"""docs/how-to/flower-app.md: Flower's quickstart with the page's diff, run by ``flwr run .``."""

import json
import re
from pathlib import Path

from helpers.flower_internals import flwr_run

PAGE = Path(__file__).resolve().parents[2] / "how-to" / "flower-app.md"
# Flower's own task.py, with scikit-learn's digits, as CIFAR-10 would be downloaded.
TASK = """
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

def load_data(partition_id, num_partitions, batch_size):
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x[partition_id::num_partitions] / 16).float().view(-1, 1, 8, 8)
    x, y = x.expand(-1, 3, -1, -1), torch.tensor(y[partition_id::num_partitions])
    train, test = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:250], y[200:250])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)
"""
PROJECT = """
[project]
name = "pytorchexample"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["fedhet"]
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "pytorchexample.server_app:app"
clientapp = "pytorchexample.client_app:app"
[tool.flwr.app.config]
out = ""
name = ""
num-server-rounds = 3
rounds = 2
"""


def quickstart(folder: Path) -> Path:
    """Write the app of the page: what its diffs leave and add."""
    package = folder / "pytorchexample"
    package.mkdir(parents=True)
    diffs = re.findall(r"```diff (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in diffs] == ["client_app.py", "server_app.py"]
    added = 0
    for name, diff in diffs:
        lines = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
        added += sum(line.startswith("+") and len(line) > 1 for line in diff.splitlines())
        (package / name).write_text("\n".join(lines) + "\n")
    assert added <= 10
    (package / "__init__.py").touch()
    (package / "task.py").write_text(TASK)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def test_flwr_run_simulates_the_quickstart_of_the_page(tmp_path):
    ending = tmp_path / "own" / "summary.json"
    said = flwr_run(quickstart(tmp_path / "app"), tmp_path, "name='own'", ending)
    summary = json.loads(ending.read_text()) if ending.exists() else {}
    assert (summary.get("status"), summary.get("failures")) == ("completed", []), said
    assert (summary["rounds"], summary["clients"]) == (2, 2)
