"""LG-FedAvg (Liang et al. 2020, "Think Locally, Act Globally", arXiv 2001.01523).

Each way the whole header (last FC): weight (C, d) and bias (C,) float32, C (d + 1) floats
(5,010 at C = 10, d = 500). The server takes the n_k-weighted mean of the headers.
"""

from fedhet.strategies.averaging import AveragingStrategy


class LGFedAvgStrategy(AveragingStrategy):
    """Averages whole headers."""
