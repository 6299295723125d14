"""A message at a client, with all that answering it takes: configuration, limits, data, state."""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Context, Message

from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import envelope, find_method, from_run_config
from fedhet.config.registry import Method
from fedhet.config.schema import RunConfig
from fedhet.files import check_id
from fedhet.protocol.checks import read_instruction
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.messages import message_bytes
from fedhet.protocol.reasons import Refused, Word, telling
from fedhet.rng import one_blas_thread
from fedhet.site.limits import Asked, Limits, check_run, read_limits
from fedhet.site.local_data import LocalData, assigned_model, client_name, load_local
from fedhet.site.on_device import choose_device
from fedhet.site.public_set import own_copy
from fedhet.site.state import SUM_KEY, FileStore, StateStore

if TYPE_CHECKING:
    from fedhet.sums.member import SumNotes


@lru_cache(maxsize=4)
def parsed(text: str) -> RunConfig:
    """The run's configuration, parsed once per process."""
    return from_run_config({"config": text})[0]


def set_process(config: RunConfig) -> None:
    """Set what belongs to the process, for every message: another run's may have come between."""
    # The same bits from cuBLAS every time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(config.threads)
    one_blas_thread()
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    torch.backends.cudnn.deterministic = True
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class Request:
    """One message, read and allowed.

    Raises LimitError for a run that the site does not allow, Refused for an instruction that makes
    no sense.
    """

    def __init__(self, message: Message, context: Context) -> None:
        self.message, self.context = message, context
        text = str(context.run_config.get("config", ""))
        if not text:  # plain `flwr run`: the scalars are the configuration
            text = envelope(from_run_config(context.run_config)[0], {})
        self.text = text
        self.config = parsed(text)
        set_process(self.config)
        self.node: Mapping[str, Any] = context.node_config
        self.simulated = is_simulated()
        self.limits = self._allowed()
        self.limits.check_download_size(message_bytes(message))
        self.what = read_instruction(message, self.config)

    @property
    def method(self) -> Method:
        """The run's method."""
        return find_method(self.config.method)

    def _allowed(self) -> Limits:
        """The site's limits; LimitError if this run breaks one."""
        limits = read_limits(self.node)
        asked = Asked(self.method.client.shares_model, tells_class_counts=not self.config.summed)
        check_run(limits, self.config, asked)
        return limits

    def data(self) -> LocalData:
        """Whose examples these are, and the examples."""
        with telling(Word.DATA):
            return load_local(self.config, self.node, simulated=self.simulated)

    def device(self) -> torch.device:
        """Where this client trains."""
        with telling(Word.DEVICE):
            return choose_device(self.config, self.node)

    def model(self, data: LocalData) -> str:
        """What it trains."""
        with telling(Word.MODEL):
            return assigned_model(self.config, self.node, data, simulated=self.simulated)

    def store(self, client: str) -> StateStore:
        """Where its private state is; the server names a place in a simulation only.

        Refused for a run that began with masked sums and has none now.
        """
        found = self._store(client)
        if self.config.secure_sum != "masked" and found.read_note(SUM_KEY) is not None:
            raise Refused("this run began with secure-sum=masked and is without now")
        return found

    def _store(self, client: str) -> StateStore:
        for name in (self.what.experiment, client):
            check_id(name)
        home = Path.home() / ".fedhet" / "state"
        own = str(self.node.get("state-dir") or home)
        root = self.what.state_dir if self.simulated else own
        return FileStore(Path(root) / self.what.experiment / client, sync=not self.simulated)

    def client(self) -> MethodClient[Any]:
        """The method's client, for this message."""
        data, device = self.data(), self.device()
        setup = Setup(
            config=own_copy(self.config, self.node, simulated=self.simulated),
            data=data,
            classes=self.what.classes,
            model=self.model(data),
            device=device,
            store=self.store(data.client),
            simulated=self.simulated,
            limits=self.limits,
        )
        return self.method.client(setup)

    def sum_notes(self, client: str = "") -> "SumNotes":
        """What this client keeps for the sums of the run, without its examples."""
        from fedhet.sums.member import SumNotes, own_terms  # noqa: PLC0415  (for runs that mask)

        client = client or client_name(self.config, self.node, simulated=self.simulated)
        terms = own_terms(self.config, self.limits)
        return SumNotes(self.store(client), self.what.experiment, client, terms)
