"""What a finished run holds of its clients, as the tests of exports ask for it."""

import csv

from helpers.pictures import images_of

from fedhet.training.metrics import evaluate


def states(folder, config):
    root = folder.state_dir(config) / folder.experiment
    return {path.name: path for path in sorted(root.iterdir())}


def percent(model, config, client, part):
    data = images_of(config, client, part)
    return evaluate(lambda x: {"": model(x)}, data, model.config).metrics["accuracy"]


def recorded(folder):
    """Newest line of clients.csv per client."""
    with folder.clients.open(encoding="utf-8", newline="") as file:
        return {row["client"]: row for row in csv.DictReader(file)}
