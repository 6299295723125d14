"""The methods in a Flower app of one's own: its two doors, for ``flwr run .``.

``client_app.py``: ``app = fedhet.ClientApp(models=Net, data=load)``; ``server_app.py``:
``app = fedhet.ServerApp(method="fedssa", clients=2, rounds=3)``. The server's configuration goes to
the clients with each message, in place of the run config that ``fedhet run`` sends.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp as FlowerClientApp
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp as FlowerServerApp

from fedhet import plugins, server_app
from fedhet.client_app import RUN, OwnSite, make_app, own_name
from fedhet.config.load import COMMON, load_noted
from fedhet.config.registry import Method, folder_name, method_keys, named
from fedhet.config.schema import RunConfig, kebab
from fedhet.data.objects import understand
from fedhet.data.partition import split_client
from fedhet.engines.launch import Launch, OnRound
from fedhet.engines.session import check_whole, reopen
from fedhet.plugins import APPS_DATA, check_given, giving
from fedhet.records.run_folder import RunFolder
from fedhet.server_app import errors_in_a_line, log, log_to_stderr, outside
from fedhet.site.local_data import LocalData, open_examples
from fedhet.training.loop import Recent

KEPT = 4  # clients whose examples a process keeps

__all__ = ["ClientApp", "ServerApp"]


def _read(load: Callable[[Context], Any], context: Context, config: RunConfig) -> LocalData:
    """Return the examples of the node with this context, as ``load`` gives them."""
    client, node = own_name(context), context.node_config
    understood = understand({client: load(context)}, ())
    if understood.data is not None:  # whose labels may be numbers into `classes`
        names, class_names = config.classes, [str(one) for one in understood.data.classes]
        places = [int(one) if one.isdecimal() else len(names) for one in class_names]
        if not set(class_names) <= set(names) and all(p < len(names) for p in places):
            class_names = [names[place] for place in places]
            understood = replace(understood, data=replace(understood.data, classes=class_names))
    for line in understood.notes:
        print(f"fedhet: client {client}: {line}", file=sys.stderr, flush=True)
    with giving({understood.name: understood}):
        dataset = open_examples(config, understood.name, "", declared=True)
    every = np.arange(len(dataset.labels))
    split = split_client(every, dataset, config.split, config.data_seed, client)
    index, count = (int(node.get(key, 0)) for key in ("partition-id", "num-partitions"))
    return LocalData(client, index, count, dataset, split)


def ClientApp(  # noqa: N802  (as Flower's)
    *,
    models: Any,
    data: Callable[[Context], Any],
    method: Method | None = None,
    metrics: Mapping[str, Callable[..., float]] | None = None,
    small_model: Any = None,
) -> FlowerClientApp:
    """Return a Flower ClientApp that takes part in the runs of a :func:`ServerApp`.

    ``models`` are as for :func:`fedhet.run`: one, or a list of which client k gets number k mod the
    length. ``data(context)`` returns this node's own examples, in any form of ``fedhet.run`` for
    one client: (x, y), (x, y, x_test, y_test), a DataFrame, a torch Dataset. ``method``,
    ``metrics`` and ``small_model`` are those of the ServerApp, where they are objects.
    """
    listed = models if isinstance(models, list | tuple) else [models]
    values, objects = named(
        {"models": listed, "method": method, "metrics": metrics, "small_model": small_model}
    )
    loaded: Recent[tuple[str, RunConfig], LocalData] = Recent(KEPT)

    def read(context: Context, config: RunConfig) -> LocalData:
        key = own_name(context), config
        if (examples := loaded.get(key)) is None:
            loaded.put(key, examples := _read(data, context, config))
        return examples

    return make_app(OwnSite(values["models"], objects, read))


def ServerApp(  # noqa: N802  (as Flower's)
    config: str | None = None,
    *,
    on_round: OnRound | None = None,
    resume: str = "",
    trust: bool = False,
    **keys: Any,
) -> FlowerServerApp:
    """Return a Flower ServerApp that runs a method with the clients of a :func:`ClientApp`.

    ``config`` is a YAML file; ``keys`` and ``on_round`` are as for :func:`fedhet.run`. Keys of the
    ``run_config`` replace them; those that are not fedhet's are left to the app. The run folder is
    below ``out`` (``~/.fedhet/runs``). ``resume``, here or in the ``run_config``, is the folder of
    a run to go on with, checked as by ``fedhet resume``; ``trust``: another user may have made it.
    """
    app = FlowerServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log_to_stderr()
        with errors_in_a_line():
            values, objects = named({kebab(key): value for key, value in keys.items()})
            with giving(objects):
                launch = _launch(config, values, dict(context.run_config), resume, trust=trust)
                launch = replace(launch, on_round=on_round, models_elsewhere=True)
                with server_app.serving(launch) as roster:
                    telling = Telling(grid, launch.envelope())
                    server_app.run(telling, launch, roster)  # type: ignore[arg-type]

    return app


def _launch(
    preset: str | None, values: Mapping[str, Any], sent: dict[str, Any], resume: str, *, trust: bool
) -> Launch:
    folder = str(sent.pop("resume", "") or resume)
    known = COMMON | method_keys(str(sent.get("method") or values.get("method") or "fedssa"))
    if others := sorted(set(sent) - known):
        log.info("run_config: %s: keys of the app, not of fedhet", ", ".join(others))
    values = {**values, **{key: value for key, value in sent.items() if key in known}}
    if folder:
        changes = {key: value for key, value in values.items() if key == "rounds"}
        resumed, resumed_config = reopen(Path(folder), changes, trust=trust)
        with resumed.lock():
            check_given(plugins.named(resumed_config.flat() | {"models": []}))
            check_whole(resumed, resumed_config)
            return Launch(resumed_config, resumed, resume=True)
    text = "texts" if values.get("text") else "table"
    dataset = text if values.get("target") else APPS_DATA
    data = {"dataset": dataset, "partition": "natural"}  # each node has its own examples
    config = load_noted(Path(preset) if preset else None, data | values)[0]
    config = outside(config, values.get("out"))
    return Launch(config, RunFolder.create(config, folder_name(config.method)))


class Telling:
    """A Grid that tells the clients the run's configuration, with each message."""

    def __init__(self, grid: Grid, text: str) -> None:
        self._grid, self._text = grid, text

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages with the configuration beside what they have."""
        listed = list(messages)
        for message in listed:
            message.content[RUN] = ConfigRecord({"config": self._text})
        return self._grid.push_messages(listed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
