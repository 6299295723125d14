"""The inline engine: server and clients in this one process, one client after the other.

The same ServerApp and ClientApp as everywhere, through Flower's Grid interface; no Ray, no
SuperLink, no other process. Whatever a client raises shows its traceback on the console, and a
debugger stops in it. The same configuration ends with the same ``run_sha256`` as in the others.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TextIO

import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from fedhet import client_app, server_app
from fedhet.engines.launch import Launch, OnRounds, Reader, conclude, raise_unless_completed
from fedhet.engines.signals import Interrupted, undisturbed
from fedhet.errors import RunFailedError, UserError, brief
from fedhet.protocol.flower import be_one_process, posted, simulating
from fedhet.rng import one_blas_thread

FIRST_NODE = 100  # Flower's node ids are large and random; nothing may take them for client ids


class InlineGrid(Grid):
    """Flower's Grid, answered by the ClientApp in this process when replies are pulled.

    All that is pushed is answered in one pull: nobody else could work meanwhile, so that
    ``round-timeout`` does not apply.
    """

    pull_interval = 0.0  # what marks a simulation's grid

    def __init__(self, text: str, nodes: int, between: Callable[[], None] = lambda: None) -> None:
        """``text`` is the run's envelope; ``between`` is called whenever messages are pushed."""
        be_one_process()
        self.contexts = {
            FIRST_NODE + k: _context(
                {"config": text}, FIRST_NODE + k, {"partition-id": k, "num-partitions": nodes}
            )
            for k in range(nodes)
        }
        self.between = between
        self.simulated = True
        self.waiting: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """All of them, always."""
        return sorted(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until they are pulled; returns their ids."""
        self.between()
        given = list(messages)
        identities = [posted(message) for message in given]
        self.waiting.update(zip(identities, given, strict=True))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Have those messages answered, in their order, and return the replies."""
        chosen = [self.waiting.pop(i) for i in list(message_ids) if i in self.waiting]
        replies = [self.answer(message) for message in chosen]
        return [reply for reply in replies if reply is not None]

    def answer(self, message: Message) -> Message | None:
        """The ClientApp's reply to one message; None if there is to be none."""
        with simulating(self.simulated):
            return client_app.app(message, self.contexts[message.metadata.dst_node_id])

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Both in one; ``timeout`` has no meaning here."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As ``Message(...)``, which replaces this."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def set_run(self, run: Any) -> None:
        """Nothing: Flower knows of no run here."""

    @property
    def run(self) -> Any:
        """There is none."""
        raise NotImplementedError("the inline engine runs without a Flower run")


def run(launch: Launch, on_rounds: OnRounds) -> None:
    """Run it here and now; RunFailedError if it did not complete.

    The caller holds :func:`~fedhet.engines.launch.take_over`'s lock. ``summary.json`` is written
    in every case; KeyboardInterrupt and :class:`Interrupted` end the run as ``stopped``.
    """
    launch.folder.summary.unlink(missing_ok=True)
    reader = Reader(launch.folder, on_rounds)
    ending = ("failed", "the run ended early")
    cause: Exception | None = None
    client_app.shown.clear()  # another run of this process may have had the same
    try:
        with _console_to_log(launch), one_blas_thread(), _torch_as_it_was():
            text = launch.envelope(owner=0)
            grid = InlineGrid(text, launch.config.clients, reader.read)
            server_app.app(grid, _context({"config": text}, 0, {}))
        reader.read()
    except (Interrupted, KeyboardInterrupt) as interrupt:
        ending = ("stopped", str(interrupt) or "SIGINT")
        raise
    except Exception as error:
        ending = ("failed", brief(error))
        cause = error
    finally:
        with undisturbed():
            conclude(launch, ending)
    raise_unless_completed(launch, f"log: {launch.folder.log}", cause)


def _context(run_config: dict[str, str], node: int, node_config: dict[str, int]) -> Context:
    return Context(
        run_id=1,
        node_id=node,
        node_config=dict(node_config),
        state=RecordDict(),
        run_config=dict(run_config),
        series_id=0,
    )


class _Tee:
    """Writes to the console and to ``log.txt``."""

    def __init__(self, console: TextIO, log: IO[str]) -> None:
        self.console, self.log = console, log

    def write(self, text: str) -> int:
        self.log.write(text)
        return self.console.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)


@contextlib.contextmanager
def _console_to_log(launch: Launch) -> Iterator[None]:
    """Keep in ``log.txt`` what the server logs and what is printed on stderr, tracebacks included.

    Unexpected errors of the server are printed here, while a debugger can still be in them.
    """
    log = logging.getLogger("fedhet")
    before = log.handlers[:], log.level, log.propagate
    with launch.folder.log.open("a", encoding="utf-8", buffering=1) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter(server_app.LOG_FORMAT))
        log.handlers[:] = [handler]
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            with contextlib.redirect_stderr(_Tee(sys.stderr, file)):
                try:
                    yield
                except (RunFailedError, UserError):
                    raise
                except Exception:
                    traceback.print_exc()
                    raise
        finally:
            log.handlers[:], log.level, log.propagate = before


@contextlib.contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Put back what a training process sets for itself: this one has other things to do."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    before = _strictness()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = cudnn
        if _strictness() != before:  # setting it imports torch's compiler, which takes seconds
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _strictness() -> tuple[bool, bool]:
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), lenient
