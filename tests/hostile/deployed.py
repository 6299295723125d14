"""A deployed client between two rounds, and messages that no honest server sends."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedhet import client_app
from fedhet.errors import Code
from fedhet.protocol.flower import posted, simulating
from fedhet.protocol.messages import arrays_of, instruction, to_record
from fedhet.site.limits import NAME
from fedhet.testing import LocalGrid, simulate, small

ROUND, NODE = 3, 100  # the round that is played again and again, and whose


def files(folder: Path) -> list[Path]:
    """All files below a folder, but for the history of questions, which grows by every refusal."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME)


class Deployed:
    """Client "0" after two honest rounds of three clients, with the message and reply of the third.

    ``config`` and ``arrays`` are the honest message's.
    """

    def __init__(
        self, tmp_path: Path, method: str, node: dict[str, Any] | None = None, **changes: Any
    ) -> None:
        values = {"image_size": 16, "dataset": "synthetic:120x4", "classes_per_client": 3}
        values["representation"] = 64
        self.run = small(tmp_path, method=method, rounds=ROUND, **values | changes)
        self.states, self._kept = tmp_path / "states", tmp_path / "kept"
        self.node = node or {}
        simulate(self.run, before=self._prepare, simulated=False)
        self.config = dict(self.message.content.config_records["config"].items())
        self.arrays = arrays_of(self.message)
        self.reset()

    def _prepare(self, grid: LocalGrid) -> None:
        for k, context in grid.contexts.items():
            context.node_config.update({"state-dir": str(self.states / str(k))})
        grid.contexts[NODE].node_config.update(self.node)
        self.context, honest = grid.contexts[NODE], grid.answer

        def answer(message: Message) -> Message | None:
            ours = message.metadata.dst_node_id == NODE
            last = message.metadata.message_type == "train" and instruction(message).round == ROUND
            if ours and last:
                shutil.copytree(self.folder, self._kept)
            reply = honest(message)
            if ours and last:
                assert reply is not None
                self.message, self.reply = message, reply
            return reply

        grid.answer = answer  # type: ignore[method-assign]

    @property
    def folder(self) -> Path:
        """All that the client keeps."""
        return self.states / str(NODE)

    def reset(self) -> None:
        """As after round 2."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._kept, self.folder)

    def instruction(self, **changes: Any) -> RecordDict:
        """The honest message's records with a changed instruction; None removes a key."""
        new = self.config | {key.replace("_", "-"): value for key, value in changes.items()}
        return self.content(ConfigRecord({k: v for k, v in new.items() if v is not None}))

    def content(self, config: Any = None, arrays: Any = None) -> RecordDict:
        """The honest message's records, with another instruction or other arrays."""
        config = ConfigRecord(self.config) if config is None else config
        return RecordDict(
            {"config": config, "arrays": to_record(self.arrays if arrays is None else arrays)}
        )

    def ask(self, content: RecordDict, kind: str = "train") -> Message:
        """The client's reply; what escapes the ClientApp escapes here as well."""
        message = Message(content, NODE, kind)
        posted(message)
        with simulating(answer=False):
            return client_app.app(message, self.context)

    @contextmanager
    def unchanged(self, name: str = "") -> Iterator[None]:
        """Nothing that the client keeps changes meanwhile."""
        before = self.stamps()
        yield
        after = self.stamps()
        assert after == before, (name, set(after.items()) ^ set(before.items()))

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """What a write to a file changes; a question of a new run is noted in the history."""
        states = (path for path in files(self.folder) if path.name != NAME)
        found = ((path, path.stat()) for path in states)
        return {str(path): (s.st_ino, s.st_mtime_ns, s.st_size) for path, s in found}

    def refusal(self, content: RecordDict, kind: str = "train", name: str = "") -> str:
        """The word by which it refuses this; AssertionError if not, or if it says more."""
        with self.unchanged(name):
            reply = self.ask(content, kind)
        assert not reply.has_error() and set(reply.content) == {"info"}, name
        info = dict(reply.content.config_records["info"].items())
        assert set(info) - {"about"} == {"error", "log", "state-lost"}
        assert type(info["log"]) is int, name
        return Code(str(info["error"])).value

    def check_honest_round(self) -> None:
        """The third round ends as if nothing had come before it; then everything is reset."""
        kept = {str(p.relative_to(self._kept)): p.read_bytes() for p in files(self._kept)}
        assert {str(p.relative_to(self.folder)): p.read_bytes() for p in files(self.folder)} == kept
        reply = self.ask(self.content())
        told = [dict(r.content.config_records["info"].items()) for r in (reply, self.reply)]
        assert told[0] == told[1]  # with the digest of the state
        numbers = [dict(r.content.metric_records["metrics"].items()) for r in (reply, self.reply)]
        for metrics in numbers:
            del metrics["seconds"]
        assert numbers[0] == numbers[1]
        sent = [[a.tobytes() for a in arrays_of(r)] for r in (reply, self.reply)]
        assert sent[0] == sent[1]
        self.reset()
