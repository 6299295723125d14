"""FedSSA (Yi et al. 2024, "Federated Semantic Similarity Aggregation", arXiv 2312.09006).

Each way only header rows of the classes S_k that client k has seen: class ids (|S_k|,), weight
(|S_k|, d) and bias (|S_k|,) float32, |S_k| (d + 1) floats (1,002 at two classes, d = 500; the paper
counts 1,000, without bias). The server takes, per class, the unweighted mean over the sampled
clients that hold the class (eq. 3); a class that nobody sent keeps its row.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, cast

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.lazy import nn
from fedhet.protocol.checks import check_declared
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, HeaderRows, Payload
from fedhet.rng import torch_seeded
from fedhet.strategies.aggregator import ROBUST
from fedhet.strategies.averaging import class_totals, sum_by_class
from fedhet.strategies.base import MethodStrategy, Reference, Upload
from fedhet.sums.contribution import Own, Summand, Vector

Rows = Literal["seen", "whole"]


class FedSSAParams(Params):
    """Hyper-parameters of FedSSA and the switches of its ablations (Tables 4 and 5)."""

    mu0: float = Field(0.5, gt=0, le=1)
    """mu_0, first weight of the local rows, in (0, 1]; code: 0.5"""
    t_stable: int = Field(5, ge=1)
    """T_stable, rounds until that weight is 0; code: 2 and 45"""
    fusion: Literal["paper", "convex"] = "paper"
    """global + mu local (eq. 4), or the same divided by 1 + mu"""
    stabilise: bool = True
    """false: global rows replace local ones, mu = 0 (Table 5, A and B)"""
    upload_rows: Rows = "seen"
    """whole: n_k-weighted mean of whole headers (Table 4, B)"""
    download_rows: Rows = "seen"
    """whole: unseen rows are overwritten as well (Table 4 B, Table 5 A)"""


class FedSSAStrategy(MethodStrategy[FedSSAParams]):
    """Per-class mean of header rows."""

    aggregations = ROBUST
    not_summed = ""
    noise_on_steps = True
    weighs_late = True
    upload_type = HeaderRows

    @classmethod
    def ignores(cls, config: RunConfig, params: FedSSAParams) -> Mapping[str, str]:
        """Return the keys of weights: eq. 3 has none."""
        if params.upload_rows == "whole":
            return {}
        reason = "rows of seen classes are averaged without weights (eq. 3)"
        return {"weighting": reason, "max-weight": reason}

    def initialise(self) -> None:
        """Draw the global header."""
        with torch_seeded(self.config.seed, "global"):
            drawn = nn.Linear(self.d, self.classes)
        self.header = np.column_stack([drawn.weight.detach().numpy(), drawn.bias.detach().numpy()])

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the rows of the classes that the client has seen, or all of them.

        All, too, if everybody is to be sent the same.
        """
        return self._rows(info, "whole" if self.sends_all else self.params.download_rows)

    def broadcast_group(self, info: ClientInfo) -> Hashable:
        """Return one group for whole headers, else one per set of classes."""
        whole = self.sends_all or self.params.download_rows == "whole"
        return "all" if whole else info.seen

    def reference(self, info: ClientInfo) -> Reference:
        """Return the rows of the same classes, which come back."""
        return Reference(self._rows(info, self.params.upload_rows))

    def check(self, info: ClientInfo, payload: HeaderRows) -> None:
        """Check for exactly the declared classes, each once."""
        expected = self._rows(info, self.params.upload_rows)
        check_declared("rows of classes", payload.classes, expected.classes)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Apply eq. 3: per class the mean of the rows that came; absent classes stay."""
        whole, ids, rows, weights = self.params.upload_rows == "whole", [], [], []
        for upload in uploads:
            payload = upload.payload
            ids.append(payload.classes)
            rows.append(np.column_stack([payload.weight, payload.bias]))
            weights.append(np.full(len(ids[-1]), upload.weight if whole else upload.late))
        sums = sum_by_class(ids, rows, weights, self.classes, self.rule)
        self.header = sums.means(self.header)
        return {}

    @classmethod
    def contribution(cls, upload: HeaderRows, own: Own) -> Summand:
        """Return rows (C, d + 1), zero if unseen, and C ones and zeros; whole headers weigh w_k."""
        whole = cast("FedSSAParams", own.config.params).upload_rows == "whole"
        rows = np.column_stack([upload.weight, upload.bias])
        weights = [np.full(len(rows), own.weight)] if whole else None
        sums = sum_by_class([upload.classes], [rows], weights, own.classes)
        return sums.summand(own, weighted=whole)

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Apply eq. 3 to the sums; a class of too few owners keeps its row."""
        totals = class_totals(self, total, weighted=self.params.upload_rows == "whole")
        self.header = totals.means(self.header)
        return {}

    @classmethod
    def sends_class_rows(cls, config: RunConfig, params: FedSSAParams) -> bool:
        """Return whether clients send rows of seen classes, and not whole headers."""
        return params.upload_rows == "seen"

    def arrays(self) -> dict[str, Array]:
        """Return the global header: weight (C, d), bias (C,)."""
        weight, bias = self.header[:, :-1], self.header[:, -1]
        return {"header.weight": weight.copy(), "header.bias": bias.copy()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        self.header = np.column_stack([arrays["header.weight"], arrays["header.bias"]])

    def _rows(self, info: ClientInfo, which: Rows) -> HeaderRows:
        ids = np.array(range(self.classes) if which == "whole" else info.seen, dtype=np.int64)
        return HeaderRows(ids, self.header[ids, :-1], self.header[ids, -1])
