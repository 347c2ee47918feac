"""Where a server's programs are, and the account they run under."""

import os
import pwd
import shutil
from pathlib import Path

from tests.services.errors import ServiceMissing


def program(*names: str, folders: tuple[str, ...] = (), remedy: str) -> str:
    """Path of the first of ``names`` found in ``folders`` (glob patterns, newest version first) or on PATH."""
    for folder in [*_newest_first(folders), *os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]:
        for name in names:
            found = shutil.which(name, path=str(folder))
            if found is not None:
                return found
    raise ServiceMissing(f"{names[0]} is not installed: {remedy}")


def newest(name: str, folders: tuple[str, ...]) -> Path | None:
    """Path of a file that is no program, in the first of ``folders`` (as of ``program``) that has it."""
    return next((folder / name for folder in _newest_first(folders) if (folder / name).exists()), None)


def _newest_first(patterns: tuple[str, ...]) -> list[Path]:
    """The folders that match, the highest version number in their path first."""
    found = [path for pattern in patterns for path in Path("/").glob(pattern.lstrip("/"))]
    return sorted(found, key=_version, reverse=True)


def _version(path: Path) -> tuple[int, ...]:
    """The numbers in a path: /usr/lib/postgresql/15/bin gives (15,)."""
    return tuple(int(part) for part in "".join(c if c.isdigit() else " " for c in str(path)).split())


def account(preferred: str) -> str | None:
    """The account for a server that refuses to run as root: ``preferred`` or nobody; None when we are not root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return preferred if preferred in known else "nobody"
