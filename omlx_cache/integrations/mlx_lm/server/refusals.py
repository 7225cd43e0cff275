"""Why a request is not answered, with the status that says whose doing it is."""


class Refused(ValueError):
    """The request is not answered; the text is for its client.

    A ValueError, because mlx-lm sends the text of one where it checks a body.
    """

    status = 500

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class BadRequest(Refused):
    """The client asked for something impossible; the text says what was expected."""

    status = 400


class NoLength(Refused):
    """The body came without its length."""

    status = 411


class TooSlow(Refused):
    """The body did not come in time, or ended early."""

    status = 408


class TooLarge(Refused):
    """The body is larger than the server takes; the text names the flag that changes it."""

    status = 413


class Unavailable(Refused):
    """Too many requests are held, or the server is ending: another time, or another server."""

    status = 503


class ComputationFailed(Refused):
    """The model raised an error while it computed this request."""

    status = 500
