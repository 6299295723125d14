"""After the last round: confusion matrices of the clients, in ``confusion.csv`` of the run folder.

Every client is sent one more message. It answers with how often each class was taken for each
other one in its test split, and keeps its predictions if ``keep-predictions`` says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.files import client_order
from fedhet.protocol.checks import Rejected
from fedhet.protocol.messages import Reply

Matrix = NDArray[np.int64]  # (C, C): examples by true class (row) and answer (column)
EVERYBODY = "all"  # stands for the clients where only the sum of their matrices is known
MOST = 2**53


def read_confusion(reply: Reply, classes: int) -> Matrix:
    """The matrix (C, C) in a reply, sent as true class, answer, number and so on.

    Rejected if it is something else.
    """
    sent = reply.info.get("confusion", [])
    try:
        cells = np.array(sent, dtype=np.int64).reshape(-1, 3)
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected("a confusion matrix that is no list of whole numbers") from error
    if len(cells) > classes**2 or (cells < 0).any() or (cells[:, :2] >= classes).any():
        raise Rejected("a confusion matrix of other classes")
    if (cells[:, 2] > MOST // max(1, len(cells))).any():
        raise Rejected("a confusion matrix of more examples than there can be")
    found = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(found, (cells[:, 0], cells[:, 1]), cells[:, 2])
    return found


def confusion_rows(classes: Sequence[str], matrices: Mapping[str, Matrix]) -> Iterator[list[Any]]:
    """Lines of ``confusion.csv``: for each client and class its recall, then the answers."""
    yield ["client", "class", "examples", "recall", *(f"predicted {name}" for name in classes)]
    for client in sorted(matrices, key=client_order):
        for label, counts in enumerate(matrices[client]):
            examples = int(counts.sum())
            if examples:
                recall = 100 * int(counts[label]) / examples
                yield [client, classes[label], examples, recall, *map(int, counts)]
