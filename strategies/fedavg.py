"""FedAvg (McMahan et al. 2017, arXiv 1602.05629): one common model for all, as a control.

"Communication-Efficient Learning of Deep Networks from Decentralized Data".

Each way all parameters of the one common model theta, float32: CNN-5 with d = 500, 670,058 floats
at 10 classes (715,148 at 100); where all clients have the same CNN it is that one. Algorithm 1:
theta^t = sum_k (n_k / n) theta_k^t over the accepted replies, after E epochs of cross-entropy at
each client.

A client's own architecture is not used; FLOPs and floats are the common model's. Inference is by
the client's trained copy. BatchNorm's running statistics are averaged like the rest.
"""

from fedhet.strategies.averaging import AveragingStrategy


class FedAvgStrategy(AveragingStrategy):
    """Averages whole models."""

    shares_small_model = True
