"""Who was told whose key, and who accepts whom: sums are of clients that all know each other."""

from collections.abc import Callable

from flwr.app import Message

from fedhet.protocol.delivery import exchange
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.messages import INTRODUCE, Instruction, read_reply, request
from fedhet.sums.messages import SUM, introduction_record

PATIENCE = 60.0  # seconds that a round waits for somebody to take in the others' keys


class Introductions:
    """The introductions of one run; after a crash of the server they are made again."""

    def __init__(self, handshake: Handshake, fail: Callable[[str, str], None]) -> None:
        """``fail`` is told who is left out of the round, and why."""
        self.handshake, self.fail = handshake, fail
        self.told: dict[str, set[str]] = {}
        self.strange: dict[str, set[str]] = {}

    def of(self, members: list[str], patience: float = PATIENCE) -> list[str]:
        """Those of ``members`` that know and accept each other, once everybody is introduced."""
        failed = self._introduce(patience)
        for client, reason in failed.items():
            if client in members:
                self.fail(client, f"not introduced: {reason}")
        return self._agreeing([c for c in members if c not in failed and c in self.told])

    def _introduce(self, patience: float) -> dict[str, str]:
        """Tell everybody who is online whom they do not know yet; reasons by client that failed."""
        roster = self.handshake.roster
        due = {c: set(roster.keys) - self.told.get(c, set()) for c in roster.nodes}
        messages = {c: self._message(c, new) for c, new in sorted(due.items()) if new}
        whose = {id(message): client for client, message in messages.items()}
        failed = {}
        for sent, message in exchange(self.handshake.grid, messages.values(), patience):
            client, reply = whose[id(sent)], read_reply(message)
            strangers = reply.info.get("strangers")
            if reply.error or not isinstance(strangers, list | tuple):
                failed[client] = reply.error or "its answer makes no sense"
                continue
            self.told.setdefault(client, set()).update(due[client])
            self.strange.setdefault(client, set()).update(map(str, strangers))
        return failed

    def _message(self, client: str, new: set[str]) -> Message:
        shake = self.handshake
        what = Instruction(shake.experiment, state_dir=shake.state_dir)
        message = request(INTRODUCE, shake.roster.nodes[client], what, PATIENCE)
        keys = shake.roster.keys
        message.content[SUM] = introduction_record({name: keys[name] for name in new})
        return message

    def _agreeing(self, members: list[str]) -> list[str]:
        """Without those whom most do not accept, and then without those who do not accept all."""
        refusals = {m: sum(m in self.strange.get(o, ()) for o in members) for m in members}
        trusted = [m for m in members if 2 * refusals[m] < len(members)]
        found = []
        for client in members:
            own = self.strange.get(client, set()) & set(trusted)
            if client not in trusted:
                many = f"{refusals[client]} of {len(members)}"
                self.fail(client, f"{many} do not accept its key for the sums")
            elif own:
                names = ", ".join(sorted(own))
                self.fail(client, f"it does not accept the keys of {names} for the sums")
            else:
                found.append(client)
        return found
