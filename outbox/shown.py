"""How a database's address and its errors are shown: in one line, without what opens it and without what is in it."""

from sqlalchemy.engine import URL


def where(url: URL) -> str:
    """Driver, user, host and name; drivers take passwords among the options too, so these are left out."""
    shown = url.set(host=_host(url), query={})
    return shown.render_as_string(hide_password=True)


def cause(error: BaseException) -> str:
    """What the driver said where SQLAlchemy has wrapped it: without the statement and its parameters."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def without_secrets(text: str, url: URL) -> str:
    """What a driver said, without the part of a password that it took for the host."""
    return text.replace(url.host, _host(url) or "") if url.host else text


def _host(url: URL) -> str | None:
    """A password with an @ that is not written as %40 ends at the last one."""
    return url.host and url.host.rpartition("@")[2]
