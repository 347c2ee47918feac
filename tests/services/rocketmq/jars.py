"""The server's jars, fetched once with Maven into a cache folder."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.services.errors import ServiceFailed, ServiceMissing

#: Releases that the contract suite runs on as well.
OTHER_VERSIONS: Final = ("4.9.7", "5.5.0")

_HERE = Path(__file__).parent
_COMPLETE = "complete"
#: What is fetched, and the file that says what belongs to it.
_POMS = {"rocketmq": "pom.xml", "rocketmq-proxy": "proxy.xml"}


def cache_folder() -> Path:
    """``OUTBOX_SERVICES_DIR``, or ``.services`` in the repository (ignored by git)."""
    named = os.environ.get("OUTBOX_SERVICES_DIR")
    return Path(named) if named else _HERE.parents[2] / ".services"


def jars(version: str, server: str = "rocketmq") -> list[Path]:
    """All jars of name server and broker (or of ``rocketmq-proxy``) of this version; fetched where they are missing."""
    folder = cache_folder() / server / version
    if not (folder / _COMPLETE).exists():
        _fetch(version, folder, _POMS[server])
    return sorted(folder.glob("*.jar"))


def java() -> str:
    """Path of the Java launcher."""
    found = shutil.which("java", path=_java_home()) or shutil.which("java")
    if found is None:
        raise ServiceMissing("java is not installed: install a JDK, 11 or newer (Debian: apt-get install default-jdk)")
    return found


def _java_home() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin") if home else os.devnull


def _fetch(version: str, folder: Path, pom: str) -> None:
    """Copies into a folder of our own and renames it, so that two test runs at once do not meet."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceMissing("mvn is not installed: install Maven 3.6 or newer (Debian: apt-get install maven)")
    own = folder.with_name(f"{version}.{os.getpid()}")
    own.mkdir(parents=True, exist_ok=True)
    command = [
        *(maven, "-q", "-B", "-f", str(_HERE / pom), "dependency:copy-dependencies"),
        *(f"-Drocketmq.version={version}", "-DincludeScope=runtime", f"-DoutputDirectory={own}"),
    ]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        shutil.rmtree(own, ignore_errors=True)
        raise ServiceFailed(f"{' '.join(command)} ended with {fetched.returncode}:\n{fetched.stdout[-2000:]}")
    (own / _COMPLETE).touch()
    if folder.exists():
        shutil.rmtree(own)
    else:
        own.rename(folder)
