"""The demo's folder: emptied before each run, and never one that holds anybody else's files."""

import shutil
from pathlib import Path

from outbox.errors import SettingsError

#: Lies in each folder that a demo made; only such a folder is ever emptied.
MARK = ".outbox-demo"


def emptied(folder: Path) -> Path:
    """The folder, made or emptied, as an absolute path; ``SettingsError`` if it is not a demo's to empty."""
    try:
        if folder.exists() and not (folder / MARK).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SettingsError(f"--folder: {folder} holds what no demo put there; name a new or an empty folder")
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARK).touch()
    except OSError as error:
        raise SettingsError(f"--folder: {folder} cannot be used: {error}; name another one") from error
    return folder.resolve()
