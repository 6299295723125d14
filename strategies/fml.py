"""FML (Shen et al. 2020, "Federated Mutual Learning", arXiv 2006.16765).

Each way all parameters of the small "meme" model theta, float32: CNN-5 with d = 500, 670,058 floats
at 10 classes (715,148 at 100). The server takes their n_k-weighted mean, as the papers that compare
with FML do (``weighting: uniform`` is the authors' 1/K). The two losses are in clients/fml.py.
"""

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.strategies.averaging import AveragingStrategy


class FMLParams(Params):
    """Hyper-parameters of FML; plain ``alpha`` is the Dirichlet partitions' key."""

    alpha_local: float = Field(0.5, ge=0, le=1)
    """alpha, share of the labels in the local model's loss; code"""
    beta_meme: float = Field(0.5, ge=0, le=1)
    """beta, share of the labels in the meme model's loss; code"""


class FMLStrategy(AveragingStrategy[FMLParams]):
    """Averages meme models."""

    shares_small_model = True
