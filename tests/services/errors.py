"""Why a server is not there."""


class ServiceMissing(RuntimeError):
    """A server's programs are not installed; the text says what to install."""


class ServiceFailed(RuntimeError):
    """A server did not start, did not get ready or did not stop; the text ends with the tail of its log."""
