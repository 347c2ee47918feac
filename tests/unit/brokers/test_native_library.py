"""Where the native client is looked for, and what is said when it is not there."""

import os
from importlib import metadata
from pathlib import Path

import pytest

from outbox.brokers.native import library
from outbox.errors import SettingsError
from outbox.settings import load
from outbox.wiring import open_broker, open_source


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No distribution of the client, and none on the loader's path; its log in the test's folder."""
    monkeypatch.setenv(library.LOG_FOLDER, str(tmp_path / "client-log"))

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(library, "_FILE", "librocketmq-that-is-nowhere.so")


def test_without_a_library_the_remedy_is_one_sentence() -> None:
    # Given no library anywhere; When a broker is opened
    settings = load(broker_url="rocketmq+native://127.0.0.1:9876", origin="orders")
    with pytest.raises(SettingsError) as raised:
        open_broker(settings)
    # Or a source
    with pytest.raises(SettingsError, match="OUTBOX_NATIVE_LIBRARY"):
        open_source(settings, ["payments"], "outbox-stock")
    # Then it says what to install and which setting names a file
    assert "pip install 'rocketmq-outbox[native]'" in str(raised.value)
    assert "OUTBOX_NATIVE_LIBRARY" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    # Given a setting that names another file; When the library is loaded; Then the file is in the message
    other = tmp_path / "other.so"
    other.write_text("no library")
    with pytest.raises(SettingsError, match=r"other\.so"):
        library.load(str(other))


def test_a_library_without_the_functions_is_no_library() -> None:
    # Given a shared library of another kind; When it is loaded; Then its missing function is named
    with pytest.raises(SettingsError, match="GetLatestErrorMessage"):
        library.load("libc.so.6")


def test_tls_is_refused() -> None:
    # Given TLS; When a broker is opened; Then the setting is named before anything is loaded
    with pytest.raises(SettingsError, match="OUTBOX_TLS"):
        open_broker(load(broker_url="rocketmq+native://127.0.0.1:9876", origin="orders", tls=True))


def test_the_log_folder_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Given nothing; When asked; Then it is an absolute folder of this user
    monkeypatch.delenv(library.LOG_FOLDER, raising=False)
    assert library.log_folder().is_absolute()
    assert library.log_folder().name.endswith(str(os.getuid()))
    # Given a relative one; When asked; Then it is made absolute: the client would put it under /logs
    monkeypatch.setenv(library.LOG_FOLDER, "logs-of-ours")
    assert library.log_folder() == Path.cwd() / "logs-of-ours"


def test_a_log_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Given a file where the folder should be; When the library is loaded; Then the setting is named
    (tmp_path / "taken").touch()
    monkeypatch.setenv(library.LOG_FOLDER, str(tmp_path / "taken" / "logs"))
    with pytest.raises(SettingsError, match=library.LOG_FOLDER):
        library.load()
