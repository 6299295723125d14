"""FedMRL as its authors' public program computes it (LipingYi/FedMRL, commit 8b90f41).

The program stores each participant's small model by reference to the one live network, so that the
"mean" of a round is the model of the participant that trained last. A round's participants come in
a random order there; here the last one is drawn by (seed, round). Everything else is FedMRL's own.
The program also keeps the momentum of small model and projector from one client to the next. It is
left out: it fades within about thirty steps, and a round has seventy.

    fedhet run CONFIG method=fedmrl:METHOD d1=500     # in this folder; d1 is 500 in the program
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedhet.clients.fedmrl import FedMRLClient
from fedhet.config.registry import Method
from fedhet.rng import generator
from fedhet.strategies.base import Upload
from fedhet.strategies.fedmrl import FedMRLParams, FedMRLStrategy


class LastOneStrategy(FedMRLStrategy):
    """The global small model is that of one participant, the last one of the round."""

    not_summed = "the server takes a single upload"

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Take the upload of the participant that trained last."""
        last = int(generator(self.config.seed, "last", round_=round_).integers(len(uploads)))
        return super().aggregate([replace(uploads[last], weight=1.0)], round_)


METHOD = Method(LastOneStrategy, FedMRLClient, "FedMRL's public program", FedMRLParams)
