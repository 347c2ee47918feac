"""Settings: one truth for names, defaults and bounds of everything that a deployment can turn.

Order: command-line flags > environment (``OUTBOX_…``) > ``.env`` > ``outbox.toml`` > the defaults here. Times are in
seconds. With nothing set, everything runs on SQLite and the embedded broker under ``./.outbox/``.
"""

import logging
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

from outbox.errors import SettingsError
from outbox.misspelt import misspelt
from outbox.origin import checked_origin
from outbox.refusals import in_words, unreadable

log = logging.getLogger(__name__)

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

DEFAULT_FOLDER = Path(".outbox")
#: The broker asks at most 15 times, by default 30 s (5.x) or 60 s (4.9) apart.
CHECK_HORIZON = 15 * 60.0
DAY = 86400.0
#: What the database is called where there is only one.
DEFAULT_NAME = "outbox"
#: Schemes of broker URLs that are not for first runs and tests alone.
REAL_BROKERS = frozenset(("rocketmq", "rocketmq+native", "rocketmq+grpc"))


class _File(TomlConfigSettingsSource):
    """``outbox.toml``, in which every name must be one of ours."""

    def __call__(self) -> dict[str, Any]:
        if unknown := sorted(set(self.toml_data) - set(self.settings_cls.model_fields)):
            raise SettingsError(f"outbox.toml: {', '.join(unknown)}: there is no such setting; correct the name")
        return super().__call__()


class DatabaseEntry(BaseModel):
    """One of several databases that a relay serves: ``[[databases]]`` in ``outbox.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: What commands and probes call it.
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]+$", max_length=63)]
    url: str
    #: "": that of all.
    origin: str = ""
    #: "": that of all, or ``outbox-<origin>``. Databases of one group share a connection to the broker.
    group: str = ""


class Settings(BaseSettings):
    """Everything that can be set, frozen."""

    model_config = SettingsConfigDict(
        env_prefix="OUTBOX_", env_file=".env", toml_file="outbox.toml", extra="ignore", frozen=True
    )

    database_url: str = f"sqlite:///{DEFAULT_FOLDER}/outbox.db"
    broker_url: str = f"embedded:{DEFAULT_FOLDER}/dev-broker.db"
    #: Names the service; required with a real broker, since checks of one origin must never be answered by another.
    origin: str = ""
    #: Producer group; "" means ``outbox-<origin>``.
    group: str = ""
    #: Several databases, each with an outbox of its own, instead of ``database_url``; ``database`` names the one that a
    #: command is about.
    databases: tuple[DatabaseEntry, ...] = ()
    database: str = ""
    #: RocketMQ namespace of all topics and groups: the prefix ``<namespace>%`` on the wire; "": none.
    namespace: Annotated[str, Field(pattern="^[A-Za-z0-9_-]*$", max_length=63)] = ""
    #: A user of a broker with ACL, and the key that signs its requests: both, or neither.
    access_key: str = ""
    secret_key: SecretStr = SecretStr("")
    #: Whether name servers and brokers are spoken to over TLS.
    tls: bool = False
    #: PEM files; "": the system's CAs, no certificate of our own, a key inside the certificate's file.
    tls_ca_file: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    #: Whether a server's certificate must name the host or address that is dialled.
    tls_check_host: bool = True
    #: For ``rocketmq+native``: path of librocketmq ("": beside its package, or where the loader finds it), and how many
    #: of the client's blocking calls run at once.
    native_library: str = ""
    native_threads: Annotated[int, Field(ge=1, le=256)] = 32

    # The lease of an attempt, and the commit lease: window in which its holder may send COMMIT, plus grace.
    lease: Seconds = 30.0
    commit_window: Seconds = 5.0
    commit_grace: Seconds = 10.0
    # One pass, and how many of them overlap.
    rows_per_pass: Annotated[int, Field(ge=1, le=4096)] = 256
    bytes_per_pass: Annotated[int, Field(ge=4 * 1024 * 1024)] = 16 * 1024 * 1024
    passes: Annotated[int, Field(ge=1, le=32)] = 2
    send_timeout: Seconds = 5.0
    #: For how long a delivery is the consumer's, extended while it lives; what a dead one held comes again that late.
    invisible: Seconds = 60.0
    #: Handlers that run at once in one consumer process.
    threads: Annotated[int, Field(ge=1, le=256)] = 4
    #: Whether the consumer group is FIFO: one message of a queue at a time, in order; all its members must agree.
    orderly: bool = False
    #: What becomes of a message that has failed sixteen retries.
    after_retries: Literal["dead-letter", "park"] = "dead-letter"
    # Refusals, outages.
    failure_budget: Count = 10
    backoff_first: Seconds = 1.0
    backoff_most: Seconds = 300.0
    unknown_delay: Seconds = 5.0
    outage_delay: Seconds = 1.0
    #: The longest time between two pings of a broker that is away: after it is back nobody waits longer.
    outage_delay_most: Seconds = 2.5
    #: The longest wait of a row whose topic, or whose broker among several, is away.
    partial_delay_most: Seconds = 30.0
    #: Where probes are answered over HTTP (``/livez``, ``/readyz``, ``/metrics``); no port: nowhere.
    health_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    health_host: str = "0.0.0.0"  # noqa: S104 -- probes come from outside the container
    # Rhythm.
    poll_fastest: Seconds = 0.1
    poll_slowest: Seconds = 1.0
    #: Whether an idle relay lets PostgreSQL tell it of new rows (LISTEN/NOTIFY) beside polling.
    notify: bool = True
    reconcile_every: Seconds = 2.0
    reconcile_rows: Count = 200
    heartbeat_every: Seconds = 10.0
    #: Delivered and cancelled rows are kept so long after they ended; dead ones until an operator decides, or so long.
    retention: Seconds = 7 * DAY
    retention_dead: Seconds | None = None
    purge_every: Seconds = 60.0
    #: How long the broker keeps its files (``fileReservedTime``): beyond half of it an absent message is no proof.
    broker_retention: Seconds = 72 * 3600.0
    #: How long the broker goes on asking about a half (``transactionTimeOut`` + ``transactionCheckInterval`` x
    #: ``transactionCheckMax``). A transport that cannot confirm takes silence for so long as delivery.
    check_horizon: Seconds = CHECK_HORIZON
    #: What becomes of a row of such a transport if no listener was there to be asked all the time.
    unsure: Literal["republish", "hold"] = "republish"
    #: What a dead row does to its lane, by topic ("*": all that are not named): "hold" it until an operator requeues or
    #: cancels the row (where nothing is set), or let it go on as soon as the row is buried ("bury").
    lane_policy: dict[str, Literal["hold", "bury"]] = {}
    #: Seconds between two looks for lanes that do not go on although they may.
    lane_sweep_every: Seconds = 5.0
    # The embedded broker's checks; a real broker has its own.
    check_timeout: Seconds = 6.0
    check_interval: Seconds = 30.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the base class's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Adds ``outbox.toml`` behind the environment."""
        return init_settings, env_settings, dotenv_settings, _File(settings_cls)

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        self._check_origins()
        if bool(self.access_key) != bool(self.secret_key.get_secret_value()):
            raise ValueError("access_key, secret_key: one is set without the other; set both, or neither")
        self._check_tls()
        for name, kept in (("retention", self.retention), ("retention_dead", self.retention_dead)):
            if kept is not None and kept <= self.check_horizon:
                raise ValueError(f"{name}: must be longer than check_horizon, {self.check_horizon:.0f} s")
        if self.send_timeout + self.commit_window >= self.lease:
            raise ValueError("lease: must be longer than send_timeout + commit_window, or attempts outlive their lease")
        return self

    def _check_origins(self) -> None:
        names = [entry.name for entry in self.databases]
        if len(set(names)) < len(names):
            raise ValueError(f"databases: {', '.join(names)}: a name is there twice; give each its own")
        if self.databases and "database_url" in self.model_fields_set:
            raise ValueError("database_url, databases: both are set; remove OUTBOX_DATABASE_URL, or the list")
        origins = [entry.origin or self.origin for entry in self.databases] or [self.origin]
        if self.broker_url.split(":", 1)[0] in REAL_BROKERS and not all(origins):
            raise ValueError("origin: is required with a real broker; set OUTBOX_ORIGIN to the name of this service")
        for origin in origins:
            checked_origin(origin or "local")

    def _check_tls(self) -> None:
        given = [name for name in ("tls_ca_file", "tls_certificate", "tls_key") if getattr(self, name)]
        if given and not self.tls:
            raise ValueError(f"{', '.join(given)}: nothing is encrypted while tls is off; set OUTBOX_TLS=true")
        if self.tls_key and not self.tls_certificate:
            raise ValueError("tls_key: there is no certificate for it; set OUTBOX_TLS_CERTIFICATE")

    @property
    def service(self) -> str:
        """The origin; "local" on the embedded broker where none is set."""
        return self.origin or "local"

    @property
    def producer_group(self) -> str:
        """The producer group of half messages."""
        return self.group or f"outbox-{self.service}"

    def logger(self, daemon: str) -> logging.Logger:
        """The logger of a daemon: one database is what its lines are about anyway; several are told apart."""
        return logging.getLogger(f"{daemon}.{self.database}" if self.database else daemon)

    @property
    def heartbeat_gap(self) -> float:
        """Seconds of silence after which a listener counts as having been away."""
        return 3 * self.heartbeat_every

    def holds_lane(self, topic: str) -> bool:
        """Whether a dead row of the topic holds its lane."""
        return self.lane_policy.get(topic, self.lane_policy.get("*", "hold")) == "hold"

    @property
    def commit_lease(self) -> float:
        """Seconds for which nobody else may act on a decision."""
        return self.commit_window + self.commit_grace


def load(**flags: Any) -> Settings:
    """The settings with the given flags on top (None: not given); ``SettingsError`` names what is wrong.

    With ``database`` they are those of that one; a flag ``database_url`` stands for all that are listed.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if "database_url" in given:
        return _loaded(given | {"databases": ()})
    loaded = _loaded(given)
    return chosen(loaded, loaded.database) if loaded.database else loaded


def served(settings: Settings) -> dict[str, Settings]:
    """The settings of each database, by its name."""
    if not settings.databases:
        return {settings.database or DEFAULT_NAME: settings}
    return {entry.name: chosen(settings, entry.name) for entry in settings.databases}


def chosen(settings: Settings, name: str) -> Settings:
    """The settings of the database of this name; ``SettingsError`` where there is none."""
    for entry in settings.databases:
        if entry.name == name:
            own = {"database_url": entry.url, "origin": entry.origin or settings.origin}
            group = entry.group or settings.group
            return settings.model_copy(update={**own, "group": group, "database": name, "databases": ()})
    listed = ", ".join(it.name for it in settings.databases) or "those in outbox.toml, which lists none"
    raise SettingsError(f"OUTBOX_DATABASE: {name!r} is none of {listed}: correct the name, or leave it out")


def _loaded(given: dict[str, Any]) -> Settings:
    def is_in_file(name: str) -> bool:
        """Or it is a flag, or in the environment, which are stronger."""
        return name not in given and f"outbox_{name}" not in _environment()

    try:
        loaded = Settings(**given)
        names = _environment()
    except ValidationError as error:
        raise SettingsError(in_words(error.errors(), is_in_file)) from error
    except UnreadableSetting as error:
        raise SettingsError(unreadable(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        which = "outbox.toml" if isinstance(error, tomllib.TOMLDecodeError) else "outbox.toml, .env"
        raise SettingsError(f"{which}: cannot be read, correct it: {error}") from error
    for name, meant in misspelt(names, Settings.model_fields, "OUTBOX_"):
        log.warning("%s: there is no such setting; is %s meant?", name.upper(), meant)
    return loaded


def _environment() -> set[str]:
    """The names in the environment and in ``.env``, in small letters."""
    return {*EnvSettingsSource(Settings).env_vars, *DotEnvSettingsSource(Settings).env_vars}
