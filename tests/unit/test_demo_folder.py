"""The demo empties its own folder and nobody else's."""

from pathlib import Path

import pytest

from outbox.cli.demo.folder import emptied
from outbox.errors import SettingsError


def test_a_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    # Given a folder that a demo made and filled
    folder = emptied(tmp_path / "deep" / "demo")
    (folder / "broker.db").touch()
    # When the next demo takes it
    again = emptied(folder)
    # Then what was in it is gone
    assert again == folder
    assert not (folder / "broker.db").exists()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert emptied(tmp_path) == tmp_path.resolve()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    # Given somebody's folder
    (tmp_path / "thesis.txt").write_text("years of work")
    # When a demo is pointed at it / Then it refuses, and the file is there
    with pytest.raises(SettingsError, match="--folder"):
        emptied(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="--folder"):
        emptied(tmp_path / "file")
    with pytest.raises(SettingsError, match="--folder"):
        emptied(tmp_path / "file" / "below")
