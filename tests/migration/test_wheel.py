"""The wheel carries the revisions inside the package, and an installed copy finds them."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Seconds; generous, since the machine may be shared.
DEADLINE = 240


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built into a throw-away folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import os; os.chdir({str(ROOT)!r}); from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, capture_output=True, timeout=DEADLINE)
    (built,) = folder.glob("*.whl")
    return built


def test_revisions_lie_inside_the_package_and_nowhere_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    revisions = {path.name for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert {name.rsplit("/", 1)[1] for name in names if name.startswith("outbox/migrations/versions/")} == revisions
    assert "outbox/migrations/env.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"outbox", "relay", "checkback"}


def test_an_installed_copy_upgrades_a_database(wheel: Path, tmp_path: Path) -> None:
    # Given the wheel unpacked, with no checkout around it
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import outbox.migrate as m, outbox.revision as r; from outbox.store.database import Database;"
        "assert 'site' in m.__file__, m.__file__; d = Database('sqlite:///there.db'); m.upgrade(d); r.check(d)"
    )
    # When it upgrades / Then the revisions were found inside the package
    run = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_extra_brings_what_a_user_of_mysql_logs_in_with(wheel: Path) -> None:
    # MySQL makes users of caching_sha2_password, whose password crosses a connection without TLS under RSA alone
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    asked = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "Requires-Dist: pymysql[rsa]>=1.1; extra == 'mysql'" in asked
