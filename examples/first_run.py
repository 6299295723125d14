"""A first run from Python, for people who read along."""

# %% [markdown]
# A first run from Python: as a script, `python examples/first_run.py`, or cell by cell in an editor
# or notebook that knows `# %%`.

# %%
import torch

import fedhet

# Three clients with two models, all in this process; nothing is downloaded. Without
# `engine="inline"` the same run uses worker processes, and ends with the same bytes.
run = fedhet.run(
    "quickstart",
    method="FedSSA",
    engine="inline",
    clients=3,
    classes_per_client=4,
    models=["cnn-4", "cnn-5"],
    rounds=2,
)
print(run)

# %% What it says: a dict of figures, and two DataFrames.
print(f"mean test accuracy {run.summary['test_accuracy_mean']:.1f} %")
print(run.rounds[["round", "test_accuracy_mean", "uplink_floats"]])
print(run.clients[["client", "model", "test_accuracy"]].tail(3))

# %% Two rounds were few: add one. The same folder, the same clients.
run = fedhet.resume(run, rounds=3)
print(len(run.rounds), "rounds")

# %% A client's own model, ready to use: images (B, 3, 32, 32) in [-1, 1] to logits (B, C).
model = run.model(0)
print(model.classes, model(torch.zeros(1, 3, 32, 32)).softmax(dim=1))

# %% Mistakes are exceptions whose text is the line that the command line prints.
try:
    fedhet.run("quickstart", round=2)
except fedhet.UserError as mistake:
    print(mistake)

# %% Any run folder can be opened again, also one that the command line made.
print(fedhet.load_run(run.path))
