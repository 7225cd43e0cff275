"""Why a command ends without having done its work, each with its exit code."""

OK = 0
FAILURE = 1
USAGE = 2
NOBODY_THERE = 69
BAD_CONFIGURATION = 78
INTERRUPTED = 130
BROKEN_PIPE = 141


class CommandError(Exception):
    """The text is for the person who typed the command."""

    exit_code = FAILURE


class UsageError(CommandError):
    """The command line does not say which store, or says something impossible."""

    exit_code = USAGE


class NobodyThere(CommandError):
    """No store answers."""

    exit_code = NOBODY_THERE
