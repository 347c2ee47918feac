"""What fell beside other tests is run once more, and nothing else is forgiven."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import MOST

ROOT = Path(__file__).parents[2]
#: A test that falls at its first run only.
ONCE = """
from pathlib import Path

def test_first():
    seen = Path("{name}.seen")
    try:
        assert seen.exists()
    finally:
        seen.touch()

def test_other():
    Path("others").open("a").write("x")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of tests with settings of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.suite", "-q", "-n", "1"]
    return subprocess.run(
        command, cwd=project, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


def test_what_passes_alone_is_named(project: Path) -> None:
    # Given a test that falls at its first run, and one that passes
    (project / "test_it.py").write_text(ONCE.format(name="it"))
    # When the suite runs
    ended = run(project)
    # Then it is green, tells of the one that fell, and ran the other one once
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.splitlines()[-1] == "  test_it.py::test_first"
    assert (project / "others").read_text() == "x"


def test_a_fault_falls_again(project: Path) -> None:
    # Given a test that falls at each run
    (project / "test_it.py").write_text("def test_it():\n    assert 1 == 2\n")
    # When the suite runs; Then it is red
    assert run(project).returncode == 1


def test_many_that_fall_are_no_accident(project: Path) -> None:
    # Given more tests that fall at their first run than there may be
    for number in range(MOST + 1):
        (project / f"test_{number}.py").write_text(ONCE.format(name=number))
    # When the suite runs; Then it is red, and none has run again
    assert run(project).returncode == 1
    assert (project / "others").read_text() == "x" * (MOST + 1)


def test_what_cannot_be_collected_is_not_run_again(project: Path) -> None:
    # Given a test file that cannot be read
    (project / "test_it.py").write_text("import nothing_of_this_name\n")
    # When the suite runs; Then it is red
    assert run(project).returncode != 0
