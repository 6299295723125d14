"""FedSSA (Yi et al. 2024, "Federated Semantic Similarity Aggregation", arXiv 2312.09006).

Each way only header rows of the classes S_k that client k has seen: class ids (|S_k|,), weight
(|S_k|, d) and bias (|S_k|,) float32, |S_k| (d + 1) floats (1,002 at two classes, d = 500; the paper
counts 1,000, without bias). The server takes, per class, the unweighted mean over the sampled
clients that hold the class (eq. 3); a class that nobody sent keeps its row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.lazy import nn
from fedhet.protocol.checks import check_declared
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import HeaderRows, Payload
from fedhet.strategies.averaging import AveragingStrategy, ClassSums, class_totals, sum_by_class
from fedhet.strategies.base import Reference, Upload
from fedhet.strategies.rules import ROBUST
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


class FedSSAStrategy(AveragingStrategy[FedSSAParams]):
    """Per-class mean of header rows."""

    aggregations = ROBUST
    broadcasts = False
    upload_type = HeaderRows
    sends_class_rows = True
    unweighted = "rows of seen classes are averaged without weights (eq. 3)"

    @classmethod
    def ignores(cls, config: RunConfig, params: FedSSAParams) -> Mapping[str, str]:
        """Return the keys of weights, unless whole headers are averaged: eq. 3 has none."""
        return {} if params.upload_rows == "whole" else super().ignores(config, params)

    def shared_module(self) -> "nn.Module":
        """Return a new header, whose arrays are `header.weight` (C, d) and `header.bias` (C,)."""
        return nn.ModuleDict({"header": nn.Linear(self.d, self.classes)})

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the rows of the classes that the client has seen, or all of them."""
        return self._rows(info, "whole" if self.sends_all else self.params.download_rows)

    def reference(self, info: ClientInfo) -> Reference:
        """Return the rows of the same classes, which come back."""
        return Reference(self._rows(info, self.params.upload_rows))

    def check(self, info: ClientInfo, payload: HeaderRows) -> None:
        """Check for exactly the declared classes, each once."""
        expected = self._rows(info, self.params.upload_rows)
        check_declared("rows of classes", payload.classes, expected.classes)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Apply eq. 3: per class the mean of the rows that came; absent classes stay."""
        whole, payloads = self.params.upload_rows == "whole", [one.payload for one in uploads]
        weights = [one.weight if whole else one.late for one in uploads]
        return self._take(sum_by_class(payloads, weights, self.classes, self.rule))

    @classmethod
    def contribution(cls, upload: Any, own: Own) -> Summand:
        """Return rows (C, d + 1), zero if unseen, and C ones and zeros; whole headers weigh w_k."""
        whole = cast("FedSSAParams", own.config.params).upload_rows == "whole"
        sums = sum_by_class([upload], [own.weight] if whole else None, own.classes)
        return sums.summand(own, weighted=whole)

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Apply eq. 3 to the sums; a class of too few owners keeps its row."""
        whole = self.params.upload_rows == "whole"
        return self._take(class_totals(self, total, weighted=whole))

    def _take(self, sums: ClassSums) -> Mapping[str, float]:
        header = sums.means(np.column_stack(self.tensors), steps=self.adds_steps)
        self.tensors = header[:, :-1].copy(), header[:, -1].copy()
        return {}

    def _rows(self, info: ClientInfo, which: Rows) -> HeaderRows:
        ids = np.array(range(self.classes) if which == "whole" else info.seen, dtype=np.int64)
        return HeaderRows(ids, *(array[ids] for array in self.tensors))
