"""One run at a time in a process: what a run changes for all of it is held, and put back."""

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

import torch
from threadpoolctl import threadpool_info

from fedhet.engines.system import open_streams
from fedhet.errors import UserError
from fedhet.rng import one_blas_thread
from fedhet.site import local_data, state

_LOCK = threading.Lock()
_holders: set[int] = set()  # the thread that holds the lock
_PAUSE = 1  # OpenMP's omp_pause_soft


@contextlib.contextmanager
def one_run(say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold this process for one run, and leave it as it was.

    Torch's generators, threads and flags, NumPy's threads, the handlers of our log, standard
    streams that are closed and the models of the run are restored. A run in another thread waits
    for this one, and says so. Raise UserError if the caller is a part of a run.
    """
    if threading.get_ident() in _holders:
        raise UserError(
            "run: a run cannot be started out of another one (on_round, a metric, a model): start "
            "it when that one has ended"
        )
    if not _LOCK.acquire(blocking=False):
        say("waiting for another run in this process: one runs at a time ...")
        _LOCK.acquire()
    _holders.add(threading.get_ident())
    try:
        with _streams(), _log(), one_blas_thread(), _torch():
            yield
    finally:
        _holders.clear()
        _LOCK.release()


@contextlib.contextmanager
def between_runs() -> Iterator[None]:
    """As :func:`one_run`, for less than a run: part of a run may do it as well."""
    if threading.get_ident() in _holders:
        yield
        return
    with one_run():
        yield


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    open_streams()
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _log() -> Iterator[None]:
    log = logging.getLogger("fedhet")
    before = log.handlers[:], log.level, log.propagate
    try:
        yield
    finally:
        log.handlers[:], log.level, log.propagate = before


@contextlib.contextmanager
def _torch() -> Iterator[None]:
    """Restore what training changes of torch, and drop the run's models and examples."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cublas, strict = os.environ.get("CUBLAS_WORKSPACE_CONFIG"), _strictness()
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        state.forget()
        local_data.forget()
        _end_pool()
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = cudnn
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        if cublas is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        if _strictness() != strict:  # setting it imports torch's compiler, which takes seconds
            torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])


def _strictness() -> tuple[bool, bool]:
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), lenient


def _end_pool() -> None:
    """End OpenMP's threads; it starts others when it needs them.

    A child that this process forks would wait for them, which it does not have.
    """
    for library in threadpool_info():
        if library["user_api"] == "openmp":
            with contextlib.suppress(AttributeError, OSError):  # older than OpenMP 5
                ctypes.CDLL(library["filepath"]).omp_pause_resource_all(_PAUSE)
