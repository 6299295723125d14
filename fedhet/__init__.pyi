from pathlib import Path

from fedhet.api import Run as Run
from fedhet.api import load_run as load_run
from fedhet.api import resume as resume
from fedhet.api import run as run
from fedhet.app import ClientApp as ClientApp
from fedhet.app import ServerApp as ServerApp
from fedhet.clients.averaging import AveragingClient as AveragingClient
from fedhet.clients.base import MethodClient as MethodClient
from fedhet.clients.base import Needs as Needs
from fedhet.clients.class_vectors import ClassVectorClient as ClassVectorClient
from fedhet.config.registry import Method as Method
from fedhet.config.schema import Params as Params
from fedhet.data.inputs import Inputs as Inputs
from fedhet.data.sources import Data as Data
from fedhet.errors import Refused as Refused
from fedhet.errors import Rejected as Rejected
from fedhet.errors import RunFailed as RunFailed
from fedhet.errors import UserError as UserError
from fedhet.models.zoo import build_model as build_model
from fedhet.protocol.handshake import ClientInfo as ClientInfo
from fedhet.protocol.payload import Array as Array
from fedhet.protocol.payload import ClassVectors as ClassVectors
from fedhet.protocol.payload import Float32 as Float32
from fedhet.protocol.payload import HeaderRows as HeaderRows
from fedhet.protocol.payload import Int64 as Int64
from fedhet.protocol.payload import LowRank as LowRank
from fedhet.protocol.payload import ModelArrays as ModelArrays
from fedhet.protocol.payload import Payload as Payload
from fedhet.protocol.payload import blank as blank
from fedhet.protocol.payload import rest as rest
from fedhet.reports.report import load_sweep as load_sweep
from fedhet.rng import generator as generator
from fedhet.rng import torch_seeded as torch_seeded
from fedhet.strategies.averaging import AveragingStrategy as AveragingStrategy
from fedhet.strategies.base import MethodStrategy as MethodStrategy
from fedhet.strategies.base import Reference as Reference
from fedhet.strategies.base import Upload as Upload
from fedhet.strategies.class_vectors import ClassVectorStrategy as ClassVectorStrategy
from fedhet.strategies.rules import ROBUST as ROBUST
from fedhet.testing import check_method as check_method
from fedhet.training.loop import Phase as Phase

__version__: str
__all__: list[str]
HERE: Path
TOP: Path
