"""Ctrl-C and the signals that ask a command to end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Ctrl-C, or a signal that asks to end; not an Exception, so that nothing swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into :class:`Interrupted`.

    Ctrl-C also if it was ignored, as a shell does for what it puts in the background; not SIGHUP,
    which ``nohup`` ignores so that the command outlives its terminal.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handling(interrupt):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore further signals while cleaning up, which takes a few seconds at most."""
    with _handling(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Python hands signals to the main thread only; in another one there is nothing to do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = [number for number in _SIGNALS if hangup or number != signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
