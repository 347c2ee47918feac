"""The C++ client ``librocketmq`` for tests: taken once from a source distribution on PyPI into the cache folder.

``rocketmq-client-python`` brings none for Linux. The sdist of ``rocketmq-python-cvs``, a fork of it, holds one of 2.1
with all functions; it is unpacked, neither built nor installed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from tests.services.errors import ServiceFailed, ServiceMissing
from tests.services.rocketmq.jars import cache_folder

_NAME: Final = "rocketmq-python-cvs"
_VERSION: Final = "2.1.0.3"
_FILE: Final = "librocketmq.so"
#: SHA-256 of the sdist: native code runs in the tests' own process.
_DIGEST: Final = "99e4ce8008554a74193a3ad94b60f939a4666c48ffabbf4c4417a109daf1419d"


def librocketmq() -> Path:
    """Path of the library; fetched where it is not there yet, which takes half a minute."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ServiceMissing("librocketmq for tests is there for Linux on x86-64 only: run them there")
    library = cache_folder() / "librocketmq" / _VERSION / _FILE
    if not library.exists():
        _fetch(library)
    return library


def _fetch(library: Path) -> None:
    """Unpacks into a folder of our own and renames the file, so that two test runs at once do not meet."""
    library.parent.mkdir(parents=True, exist_ok=True)
    own = library.with_name(f"{_FILE}.{os.getpid()}")
    own.mkdir()
    try:
        _unpack(_download(own), own)
        (own / _FILE).replace(library)
    finally:
        shutil.rmtree(own)


def _download(folder: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--no-binary", _NAME, "--dest", str(folder), f"{_NAME}=={_VERSION}"),
    ]
    downloaded = subprocess.run(command, capture_output=True, text=True, check=False)
    if downloaded.returncode != 0:
        raise ServiceFailed(f"{' '.join(command)} ended with {downloaded.returncode}:\n{downloaded.stderr[-2000:]}")
    (archive,) = folder.glob("*.tar.gz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _DIGEST:
        raise ServiceFailed(f"{archive.name}: its content is not what it was; look at it before you use it")
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as sdist:
        (member,) = [it for it in sdist.getmembers() if Path(it.name).name == _FILE]
        content = sdist.extractfile(member)
        if content is None:
            raise ServiceFailed(f"{archive.name}: {member.name} is no file; another version of it came")
        (folder / _FILE).write_bytes(content.read())
