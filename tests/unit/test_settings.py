"""Where settings come from, and that every refusal names the setting."""

from pathlib import Path

import pytest

from outbox.errors import SettingsError
from outbox.settings import CHECK_HORIZON, Settings, load, served
from outbox.wiring import open_database


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings but the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"OUTBOX_{name.upper()}", raising=False)
    return tmp_path


def refused(**flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(**flags)
    return str(caught.value)


def test_with_nothing_set_everything_runs_in_one_folder() -> None:
    settings = load()
    assert settings.database_url == "sqlite:///.outbox/outbox.db"
    assert settings.broker_url == "embedded:.outbox/dev-broker.db"
    assert settings.service == "local"
    assert settings.producer_group == "outbox-local"


def test_flags_beat_the_environment_beats_dotenv_beats_toml_beats_defaults(
    in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a setting that is in none, one, two, three or all of the sources
    (in_an_empty_folder / "outbox.toml").write_text("lease = 41\npasses = 11\nretention = 900001\nbackoff_first = 2\n")
    (in_an_empty_folder / ".env").write_text("OUTBOX_LEASE=42\nOUTBOX_PASSES=12\nOUTBOX_RETENTION=900002\n")
    monkeypatch.setenv("OUTBOX_LEASE", "43")
    monkeypatch.setenv("OUTBOX_PASSES", "13")
    # When the settings are loaded with one flag
    settings = load(lease=44, passes=None)
    # Then the strongest source has won each
    assert (settings.lease, settings.passes, settings.retention) == (44, 13, 900002)
    assert (settings.backoff_first, settings.failure_budget) == (2, 10)


def test_a_flag_that_is_not_given_changes_nothing() -> None:
    assert load(origin=None, database_url=None) == load()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().lease = 1


def test_the_group_follows_the_origin_unless_it_is_set() -> None:
    assert load(origin="orders").producer_group == "outbox-orders"
    assert load(origin="orders", group="mine").producer_group == "mine"


def test_the_commit_lease_is_window_and_grace() -> None:
    assert load(commit_window=2, commit_grace=3).commit_lease == 5


def test_a_real_broker_needs_an_origin() -> None:
    assert "OUTBOX_ORIGIN" in refused(broker_url="rocketmq://127.0.0.1:9876")
    assert load(broker_url="rocketmq://127.0.0.1:9876", origin="orders").service == "orders"


@pytest.mark.parametrize("origin", ["or ders", "ordérs", "a/b", "x" * 101, "a\n"], ids=ascii)
def test_an_origin_that_cannot_be_part_of_a_group_name(origin: str) -> None:
    assert refused(origin=origin).startswith("origin: ")


def test_retention_outlives_the_brokers_checks() -> None:
    assert refused(retention=CHECK_HORIZON).startswith("retention: ")
    assert load(retention=CHECK_HORIZON + 1).retention == CHECK_HORIZON + 1


def test_dead_rows_are_kept_unless_a_period_is_set() -> None:
    assert load().retention_dead is None
    assert refused(retention_dead=CHECK_HORIZON).startswith("retention_dead: ")
    assert load(retention_dead=30 * 86400).retention_dead == 30 * 86400


def test_a_lease_outlives_an_attempt() -> None:
    assert refused(lease=10, send_timeout=5, commit_window=5).startswith("lease: ")


#: ``Seconds`` and ``Count``, and counts with bounds of their own.
NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_a_number_out_of_bounds_is_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OUTBOX_{name.upper()}", value)
    assert refused().startswith(f"OUTBOX_{name.upper()}: ")


@pytest.mark.parametrize("name", [name for name in NUMBERS if Settings.model_fields[name].annotation is float])
def test_no_time_is_infinite(name: str) -> None:
    assert refused(**{name: float("inf")}).startswith(f"OUTBOX_{name.upper()}: ")


def test_a_time_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_RETENTION", "7d")
    assert refused() == "OUTBOX_RETENTION: must be a number of seconds, such as 30 (got '7d')"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("LANE_POLICY", "bury", """must be JSON, such as '{"payments": "bury", "*": "hold"}'; or stand in outbox.toml"""),
     ("LANE_POLICY", "[]", """must be a table, such as '{"payments": "bury", "*": "hold"}'"""),
     ("LANE_POLICY", '{"a": 1}', ".a: must be 'hold' or 'bury' (got 1)"),
     ("DATABASES", "7", """must be a list, such as '[{"name": "east", "url": "postgresql://app@db/east"}]'"""),
     ("DATABASES", '["east"]', """[0]: must be a table, such as '{"name": "east", "url": "postgresql://app@db/east"}'"""),
     ("UNSURE", "drop", "must be 'republish' or 'hold' (got 'drop')"),
     ("PASSES", "1.5", "must be a whole number, such as 1 (got '1.5')"),
     ("PASSES", "99", "must be at most 32 (got '99')"),
     ("PASSES", "0", "must be at least 1 (got '0')"),
     ("LEASE", "0", "must be more than 0 (got '0')"),
     ("LEASE", "inf", "must be finite (got 'inf')"),
     ("TLS", "maybe", "must be true or false (got 'maybe')"),
     ("NAMESPACE", "a b", "must be of letters, digits, '-' and '_' alone (got 'a b')"),
     ("NAMESPACE", "n" * 64, f"must have at most 63 characters (got '{'n' * 64}')")],
)  # fmt: skip
def test_a_wrong_value_is_told_in_words_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"OUTBOX_{name}", value)
    assert refused() == f"OUTBOX_{name}{'' if said[0] in '.[' else ': '}{said}"


@pytest.mark.parametrize(
    ("written", "said"),
    [("lease = 'soon'", "lease: must be a number of seconds, such as 30 (got 'soon')"),
     ("group = 7", "group: must be text, such as 'orders' (got 7)"),
     ("lane_policy = 'bury'", 'lane_policy: must be a table, such as {payments = "bury", "*" = "hold"}'),
     ("[lane_policy]\npayments = 'drop'", "lane_policy.payments: must be 'hold' or 'bury' (got 'drop')"),
     ("[databases]\nname = 'east'\nurl = 'postgresql://app:secret@db/east'",
      'databases: must be a list, such as [{name = "east", url = "postgresql://app@db/east"}]'),
     ("[[databases]]\nurl = 'postgresql://app:secret@db/east'", "databases[0].name: is missing; set it"),
     ("[[databases]]\nname = 'a'\nurl = ''\nuri = 'postgresql://app:secret@db/a'",
      "databases[0].uri: there is no such setting; correct the name")],
)  # fmt: skip
def test_what_stands_in_the_file_is_called_by_its_name_there(in_an_empty_folder: Path, written: str, said: str) -> None:
    (in_an_empty_folder / "outbox.toml").write_text(written)
    assert refused() == f"outbox.toml: {said}"


def test_several_faults_are_told_at_once() -> None:
    said = refused(lease=-1, passes=0)
    assert "OUTBOX_LEASE" in said
    assert "OUTBOX_PASSES" in said


def test_a_file_that_cannot_be_read_is_named(in_an_empty_folder: Path) -> None:
    (in_an_empty_folder / "outbox.toml").write_text("lease = = 3\n")
    assert "outbox.toml" in refused()


def test_a_name_in_the_environment_that_is_nearly_a_setting_is_doubted(
    in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a slip in the environment, one in .env, and names that mean something else
    monkeypatch.setenv("OUTBOX_DATABASE_ULR", "postgresql://db/orders")
    for other in ("OUTBOX_LOG_LEVEL", "OUTBOX_TEST_POSTGRES_URL", "OUTBOX_SERVICES_DIR", "ORIGON"):
        monkeypatch.setenv(other, "x")
    (in_an_empty_folder / ".env").write_text("OUTBOX_ORIGON=orders\n")
    # When the settings are loaded; Then the slips are told, with what may be meant, and nothing else is
    assert load() == Settings()
    assert [record.getMessage() for record in caplog.records] == [
        "OUTBOX_DATABASE_ULR: there is no such setting; is OUTBOX_DATABASE_URL meant?",
        "OUTBOX_ORIGON: there is no such setting; is OUTBOX_ORIGIN meant?",
    ]


def test_a_misspelt_setting_in_the_file_is_refused(in_an_empty_folder: Path) -> None:
    (in_an_empty_folder / "outbox.toml").write_text("leese = 3\n")
    assert "leese" in refused()


def test_foreign_names_in_dotenv_are_nobodys_business(in_an_empty_folder: Path) -> None:
    (in_an_empty_folder / ".env").write_text("DATABASE_URL=postgresql://elsewhere\nSECRET=1\n")
    assert load().database_url == "sqlite:///.outbox/outbox.db"


SECRET = "a-secret-that-nobody-sees"


def test_the_secret_key_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given both keys in the environment
    monkeypatch.setenv("OUTBOX_ACCESS_KEY", "orders")
    monkeypatch.setenv("OUTBOX_SECRET_KEY", SECRET)
    # When the settings are shown, dumped, or refused for another reason
    settings = load()
    shown = [repr(settings), str(settings), settings.model_dump_json(), refused(lease=-1), refused(lease=1)]
    # Then the secret is in none of it, and still there for who asks
    assert [text for text in shown if SECRET in text] == []
    assert settings.secret_key.get_secret_value() == SECRET


def test_a_secret_key_of_the_wrong_kind_is_refused_unseen() -> None:
    said = refused(access_key="orders", secret_key=[SECRET])
    assert said.startswith("OUTBOX_SECRET_KEY: ")
    assert SECRET not in said


@pytest.mark.parametrize("flags", [{"access_key": "orders"}, {"secret_key": SECRET}], ids=str)
def test_access_key_and_secret_key_come_together(flags: dict[str, str]) -> None:
    said = refused(**flags)
    assert said.startswith("access_key, secret_key: ")
    assert SECRET not in said


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_certificate", "tls_key"])
def test_files_for_tls_without_tls_are_refused(name: str) -> None:
    # Somebody who names them believes that the connection is encrypted
    assert refused(**{name: "a.pem"}).startswith(f"{name}: nothing is encrypted")


def test_a_key_needs_its_certificate() -> None:
    assert refused(tls=True, tls_key="a.key").startswith("tls_key: ")
    assert load(tls=True, tls_certificate="a.pem", tls_key="a.key").tls_check_host


@pytest.mark.parametrize("namespace", ["east", "team_1-blue", ""])
def test_a_namespace_is_a_plain_name(namespace: str) -> None:
    assert load(namespace=namespace).namespace == namespace


@pytest.mark.parametrize("namespace", ["east%west", "a b", "n" * 64])
def test_a_namespace_that_is_no_name_is_refused(namespace: str) -> None:
    assert "OUTBOX_NAMESPACE" in refused(namespace=namespace)


TENANTS = """
origin = "shop"

[[databases]]
name = "east"
url = "postgresql://east/shop"

[[databases]]
name = "west"
url = "postgresql://west/shop"
origin = "shop-west"
group = "outbox-all"
"""


def test_several_databases_are_listed_in_the_file(in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given two databases, the second with an origin and a group of its own
    (in_an_empty_folder / "outbox.toml").write_text(TENANTS)
    # When a daemon asks whom it serves
    each = served(load())
    # Then each has its own settings
    assert {name: (it.database_url, it.service, it.producer_group) for name, it in each.items()} == {
        "east": ("postgresql://east/shop", "shop", "outbox-shop"),
        "west": ("postgresql://west/shop", "shop-west", "outbox-all"),
    }
    # When one is named, or another one given; Then there is only that
    assert list(served(load(database="west"))) == ["west"]
    monkeypatch.setenv("OUTBOX_DATABASE", "east")
    assert load().database_url == "postgresql://east/shop"
    monkeypatch.delenv("OUTBOX_DATABASE")
    assert load(database_url="sqlite:///other.db").databases == ()


def test_a_command_about_one_database_says_which_there_are(in_an_empty_folder: Path) -> None:
    (in_an_empty_folder / "outbox.toml").write_text(TENANTS)
    with pytest.raises(SettingsError, match=r"--database: east, west"):
        open_database(load())
    assert "'north' is none of east, west" in refused(database="north")


def test_a_command_about_a_database_that_nobody_lists_is_refused(in_an_empty_folder: Path) -> None:
    # Given no list, as in the wrong folder; Then the name is not ignored: the command would work on another database
    assert "'east' is none of those in outbox.toml, which lists none" in refused(database="east")


@pytest.mark.parametrize(
    ("change", "named"),
    [(('"west"', '"east"'), "there twice"),
     (('origin = "shop"\n', ""), "OUTBOX_ORIGIN"),
     (("url = ", "uri = "), "outbox.toml: databases[0].uri: there is no such setting"),
     (('"shop-west"', '"shop west"'), "origin"),
     (('origin = "shop"\n', 'origin = "shop"\ndatabase_url = "sqlite:///x.db"\n'), "both are set")],
    ids=lambda it: it if isinstance(it, str) else "",
)  # fmt: skip
def test_a_list_of_databases_that_is_wrong_is_refused(
    in_an_empty_folder: Path, change: tuple[str, str], named: str
) -> None:
    (in_an_empty_folder / "outbox.toml").write_text(TENANTS.replace(*change))
    assert named in refused(broker_url="rocketmq://127.0.0.1:9876")


def test_the_environment_does_not_replace_a_list_of_databases_unnoticed(
    in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_an_empty_folder / "outbox.toml").write_text(TENANTS)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "sqlite:///x.db")
    assert "OUTBOX_DATABASE_URL" in refused()


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ({}, {"payments": True, "logs": True}),
        ({"payments": "bury"}, {"payments": False, "logs": True}),
        ({"*": "bury", "payments": "hold"}, {"payments": True, "logs": False}),
    ],
)
def test_a_dead_row_holds_its_lane_by_topic(written: dict[str, str], held: dict[str, bool]) -> None:
    settings = load(lane_policy=written)
    assert {topic: settings.holds_lane(topic) for topic in held} == held


def test_a_policy_for_lanes_that_cannot_be_read_is_named(
    in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_an_empty_folder / "outbox.toml").write_text('[lane_policy]\npayments = "bury"\n')
    assert not load().holds_lane("payments")
    assert "OUTBOX_LANE_POLICY" in refused(lane_policy={"payments": "drop"})
    monkeypatch.setenv("OUTBOX_LANE_POLICY", "bury")
    assert refused().startswith("OUTBOX_LANE_POLICY: ")
