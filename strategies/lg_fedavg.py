"""LG-FedAvg (Liang et al. 2020, "Think Locally, Act Globally", arXiv 2001.01523).

Each way the whole header (last FC): weight (C, d) and bias (C,) float32, C (d + 1) floats
(5,010 at C = 10, d = 500). The server takes the n_k-weighted mean of the headers.

Differs from the authors' code, which averages uniformly, starts from a FedAvg checkpoint and, for
CIFAR, shares two convolutions instead of the classifier; here the classifier is shared, from
scratch, as in the papers that compare with it.
"""

from fedhet.strategies.averaging import AveragingStrategy


class LGFedAvgStrategy(AveragingStrategy):
    """Averages whole headers."""
