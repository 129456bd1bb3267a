"""Errors that a user sees: one line, what is wrong and what to do, with the exit code that goes with it."""

FAILED, USAGE, INFRASTRUCTURE = 1, 2, 75


class UserError(Exception):
    """A one-line error. `code` is the exit status: FAILED (1), USAGE (2) or INFRASTRUCTURE (75: a retry helps)."""

    def __init__(self, message: str, code: int = USAGE):
        super().__init__(message)
        self.code = code
