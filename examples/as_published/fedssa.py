"""FedSSA as its authors' public program computes it (LipingYi/FedSSA, commit 0c53d04).

Where it is not the paper's algorithm:

- All clients of an architecture begin with the same weights, and one that trains for the first time
  begins with those of the client of its architecture that trained last: its state is a reference to
  the live network. Here it is the last one of the rounds before.
- The server averages the last header rows of all N clients that own a class in every round, those
  of clients that have not trained included, not the rows of a round's participants.

    fedhet run CONFIG method=fedssa:METHOD t-stable=2     # in this folder; a simulation
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhet.clients.averaging import get_parameters, set_parameters
from fedhet.clients.fedssa import FedSSAClient
from fedhet.config.registry import Method
from fedhet.models.zoo import build_model
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, Float32, HeaderRows, Payload, rest
from fedhet.rng import generator, torch_seeded
from fedhet.strategies.base import Reference, Upload
from fedhet.strategies.fedssa import FedSSAParams, FedSSAStrategy


@dataclass(frozen=True)
class RowsAndModel(HeaderRows):
    """Header rows, and a whole model where one travels."""

    tensors: tuple[Float32, ...] = rest()


class StoredRowsStrategy(FedSSAStrategy):
    """Keeps the last rows of all clients and the last model of each architecture."""

    upload_type = RowsAndModel
    not_summed = "the server keeps single uploads"

    def initialise(self) -> None:
        """Give every client the initial header's rows, every architecture its initial weights."""
        super().initialise()
        self.stored: Array = np.tile(np.column_stack(self.tensors), (len(self.roster.ids), 1, 1))
        self.trained = np.zeros(len(self.roster.ids), dtype=np.int64)
        self.live: dict[str, tuple[Array, ...]] = {}
        for name in sorted({info.model for info in self.roster.infos.values()}):
            with torch_seeded(self.config.seed, "global", name):
                model = build_model(name, classes=self.classes, d=self.d, inputs=self.inputs)
            self.live[name] = get_parameters(model)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the rows of the client's classes, before its first round with a model."""
        rows = self._rows(info, "seen")
        new = not self.trained[self.roster.ids.index(info.client)]
        return RowsAndModel.from_ndarrays([*rows.flat, *(self.live[info.model] if new else ())])

    def reference(self, info: ClientInfo) -> Reference:
        """Return the shapes of the rows and of a model."""
        return Reference(
            RowsAndModel.from_ndarrays([*self._rows(info, "seen").flat, *self.live[info.model]])
        )

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Store what came; average the stored rows of all owners of a class."""
        order = generator(self.config.seed, "order", round_=round_).permutation(len(uploads))
        for upload in (uploads[place] for place in order):
            payload, client = upload.payload, self.roster.ids.index(upload.info.client)
            assert isinstance(payload, RowsAndModel)
            rows = np.column_stack([payload.weight, payload.bias])
            self.stored[client][payload.classes] = rows
            self.live[upload.info.model] = payload.tensors
            self.trained[client] = round_
        header = np.column_stack(self.tensors)
        seen = [set(self.roster.infos[client].seen) for client in self.roster.ids]
        for one in range(self.classes):
            owners = [client for client, classes in enumerate(seen) if one in classes]
            if owners:
                header[one] = self.stored[owners, one].mean(axis=0, dtype=np.float64)
        self.tensors = header[:, :-1].copy(), header[:, -1].copy()
        return {}

    def arrays(self) -> dict[str, Array]:
        """Return the header, the stored rows (N, C, d + 1) and the live models."""
        live = {f"live.{n}.{i}": a for n, all_ in self.live.items() for i, a in enumerate(all_)}
        return super().arrays() | {"stored": self.stored, "trained": self.trained} | live

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        super().load(arrays)
        self.stored, self.trained = arrays["stored"], arrays["trained"]
        for name, before in self.live.items():
            self.live[name] = tuple(arrays[f"live.{name}.{i}"] for i in range(len(before)))


class StoredRowsClient(FedSSAClient):
    """Takes a whole model before its first round, and sends its own."""

    download_type = RowsAndModel

    def expect_download(self, came: Payload) -> Payload | None:
        """Return the rows' shapes, and the model's if one came."""
        rows = super().expect_download(came)
        assert isinstance(rows, HeaderRows) and isinstance(came, RowsAndModel)
        return RowsAndModel.from_ndarrays(
            [*rows.flat, *(get_parameters(self.model) if came.tensors else ())]
        )

    def receive(self, payload: Payload) -> None:
        """Take the model, then fuse the rows."""
        assert isinstance(payload, RowsAndModel)
        if payload.tensors:
            set_parameters(self.model, payload.tensors)
        super().receive(payload)

    def upload(self) -> Payload:
        """Return the rows of the own classes and the whole model."""
        return RowsAndModel.from_ndarrays([*super().upload().flat, *get_parameters(self.model)])


METHOD = Method(StoredRowsStrategy, StoredRowsClient, "FedSSA's public program", FedSSAParams)
