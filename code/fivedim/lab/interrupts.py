"""Interrupts: SIGINT, SIGTERM and SIGHUP as something that a waiting loop looks at, at moments of its own."""

import signal
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CancelledError(Exception):
    """A signal asked to stop; the exit status is 128 + its number."""

    def __init__(self, number: int):
        super().__init__(f"cancelled ({signal.Signals(number).name})")
        self.code = 128 + number


class Interrupts:
    """While entered, the first signal is kept until the next `pause`; a second one takes its default action."""

    def __enter__(self) -> "Interrupts":
        self.received: int | None = None
        self.before = {number: signal.signal(number, self.receive) for number in SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def receive(self, number: int, _frame) -> None:
        self.received = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    def pause(self, seconds: float) -> None:
        """Sleep, in slices of 50 ms. Raises CancelledError once a signal has come."""
        until = time.monotonic() + seconds
        while True:
            if self.received is not None:
                raise CancelledError(self.received)
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, 0.05))
