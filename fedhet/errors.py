"""The two kinds of failure that a user sees, each with its exit code."""


class UserError(Exception):
    """A mistake that the user can mend: one line naming the thing, its value and what is allowed.

    The command line prints the line without a traceback and exits with code 2.
    """

    exit_code = 2


class HookError(Exception):
    """A method, model or data set gave the base what it cannot work with; one line names the hook.

    A client's becomes the reason for which it is left out; a server's ends the run.
    """


class RunFailedError(Exception):
    """A run that started but did not complete; the command line exits with code 3."""

    exit_code = 3


class VerifyError(RunFailedError):
    """What a run left behind is damaged or does not fit together; names the file. Exit code 3."""
