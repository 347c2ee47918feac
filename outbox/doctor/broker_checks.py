"""From what a broker says to findings: pure functions, one broker, topic or group at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.brokers.examiner import Discarded, DiscardTopic, GroupFacts, Runtime, TopicFacts
from outbox.doctor import broker_subjects as subject
from outbox.doctor.findings import Finding, Level
from outbox.message import Mode
from outbox.origin import parts_of
from outbox.words import counted

_READ: Final = 4
_WRITE: Final = 2
_FAULTY_VERSIONS: Final = frozenset(("5.5.0", "5.5.1"))
_TRANSACTIONAL: Final = frozenset(("TRANSACTION", "MIXED"))
#: Above it sends are refused (``rocketmq.broker.diskSpaceWarningLevelRatio``).
_DISK_FULL: Final = 0.9
#: ``retryMaxTimes`` of a group that nobody changed.
_USUAL_RETRIES: Final = 16
#: Discarded halves that are shown one by one.
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Expected:
    """What the toolkit's own settings count on, in seconds."""

    retention: float
    lease: float
    broker_retention: float
    check_horizon: float


def of_settings(broker: str, settings: Mapping[str, str], expected: Expected) -> Iterator[Finding]:
    """Of one broker's settings; what it does not say (4.9, the embedded broker) is left out."""
    about = f"broker {broker}"
    yield from _checks(about, settings, expected)
    yield from _store(about, settings, expected)
    yield from _durability(about, settings)
    yield from _switches(about, settings)


def of_runtime(broker: str, runtime: Runtime, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Version and disk."""
    about = f"broker {broker}"
    if runtime.version:
        faulty = runtime.version in _FAULTY_VERSIONS
        yield subject.BROKER_VERSION.judged(about, runtime.version, Level.WARNING if faulty else None)
    if runtime.disk_used is not None:
        cleaning = _number(settings, "diskMaxUsedSpaceRatio") or 75.0
        worst = Level.PROBLEM if runtime.disk_used >= _DISK_FULL else Level.WARNING
        bad = runtime.disk_used >= min(cleaning / 100, _DISK_FULL)
        seen = f"{runtime.disk_used:.0%} used, diskMaxUsedSpaceRatio={cleaning:g}"
        yield subject.DISK.judged(about, seen, worst if bad else None)


def of_topic(topic: str, mode: Mode, found: Mapping[str, TopicFacts | None]) -> Iterator[Finding]:
    """``found``: by broker, None where it does not have the topic."""
    about = f"topic {topic}"
    there = {broker: facts for broker, facts in sorted(found.items()) if facts is not None}
    if not there:
        yield subject.TOPIC.problem(about, "missing")
        return
    yield subject.TOPIC.ok(about, "at " + ", ".join(there))
    types = sorted({facts.message_type for facts in there.values() if facts.message_type is not None})
    if types and mode is Mode.TRANSACTIONAL:
        fits = set(types) <= _TRANSACTIONAL
        yield subject.TOPIC_TYPE.judged(about, f"message.type={', '.join(types)}", None if fits else Level.WARNING)
    queues = sum(facts.write_queues for facts in there.values())
    yield subject.TOPIC_QUEUES.judged(about, counted(queues, "write queue"), None if queues else Level.PROBLEM)
    lacking = [f"{it} perm={facts.permission}" for it, facts in there.items() if not _open(facts.permission)]
    unwritable = not any(facts.permission & _WRITE for facts in there.values())
    worst = Level.PROBLEM if unwritable else Level.WARNING
    yield subject.TOPIC_PERMISSION.judged(about, ", ".join(lacking) or "perm=6", worst if lacking else None)


def of_group(group: str, found: Mapping[str, GroupFacts | None]) -> Iterator[Finding]:
    """A consumer group; ``found``: by broker, None where it does not have the group."""
    about = f"consumer group {group}"
    there = {broker: facts for broker, facts in sorted(found.items()) if facts is not None}
    missing = sorted(set(found) - set(there))
    yield subject.GROUP.judged(about, f"unknown to {', '.join(missing)}" if missing else "known", _note_if(missing))
    if not there:
        return
    off = [broker for broker, facts in there.items() if not facts.consumes]
    seen = f"consumeEnable=false at {', '.join(off)}" if off else "consumeEnable=true"
    yield subject.GROUP_ENABLED.judged(about, seen, Level.PROBLEM if off else None)
    limits = [facts.retries for facts in there.values() if facts.retries is not None]
    if limits:
        few = min(limits) < _USUAL_RETRIES
        yield subject.GROUP_RETRIES.judged(about, f"retryMaxTimes={min(limits)}", Level.NOTE if few else None)


def of_listeners(where: str, clients: int, committed: int, *, needed: bool) -> Finding:
    """A producer group at one broker; ``needed``: rows are open that the broker may ask about."""
    worst = Level.WARNING if needed else Level.NOTE
    seen = f"{clients} registered, {counted(committed, 'committed row')}"
    return subject.LISTENER_REGISTERED.judged(f"producer group {where}", seen, None if clients else worst)


def of_discarded(broker: str, topic: DiscardTopic, origin: str, service: str) -> Iterator[Finding]:
    """``origin``: of this database; "": it is not known, and those of ``service`` are taken for ours."""
    about = f"broker {broker}"
    of_service = [half for half in topic.newest if parts_of(half.origin)[0] == service]
    ours = [half for half in of_service if not origin or half.origin == origin]
    foreign = [half for half in of_service if half not in ours]
    seen = f"{topic.count} lie there, {len(ours)} of the {len(topic.newest)} newest are ours{_named(ours)}"
    worst = Level.WARNING if ours else _note_if(topic.count)
    yield subject.DISCARDED.judged(about, seen if topic.count else "none", worst)
    if foreign:
        seen = f"{len(foreign)} of the {len(topic.newest)} newest{_named(foreign)}, of {foreign[0].origin}"
        yield subject.DISCARDED_FOREIGN.warning(about, seen)


def _named(halves: Sequence[Discarded]) -> str:
    """The latest ones, with their keys."""
    if not halves:
        return ""
    shown = (f"{it.key or '-'} for {it.topic} at {it.at:%Y-%m-%dT%H:%M:%SZ}" for it in halves[:_SHOWN])
    return ": " + "; ".join(shown) + ("; …" if len(halves) > _SHOWN else "")


def _checks(about: str, settings: Mapping[str, str], expected: Expected) -> Iterator[Finding]:
    timeout, interval, times = (
        _number(settings, name) for name in ("transactionTimeOut", "transactionCheckInterval", "transactionCheckMax")
    )
    if timeout is None or interval is None or times is None:
        return
    horizon = (timeout + interval * times) / 1000
    rounds = f"after {timeout / 1000:g} s, every {interval / 1000:g} s, {times:.0f} times: {horizon:g} s"
    yield subject.CHECK_HORIZON.judged(about, rounds, Level.WARNING if horizon <= expected.lease else None)
    kept = f"rows are kept {expected.retention:g} s, checks end after {horizon:g} s"
    yield subject.RETENTION.judged(about, kept, Level.PROBLEM if expected.retention <= horizon else None)
    seen = f"OUTBOX_CHECK_HORIZON={expected.check_horizon:g} s, checks end after {horizon:g} s"
    yield subject.CHECK_HORIZON_SETTING.judged(about, seen, _note_if(expected.check_horizon < horizon))
    batch = _number(settings, "transactionOpBatchInterval")
    if batch is not None:
        seen = f"transactionOpBatchInterval={batch:g}, transactionTimeOut={timeout:g} ms"
        late = batch >= min(timeout, interval)
        yield subject.CHECK_BATCH.judged(about, seen, Level.WARNING if late else None)


def _store(about: str, settings: Mapping[str, str], expected: Expected) -> Iterator[Finding]:
    index = settings.get("messageIndexEnable")
    if index is not None:
        yield subject.MESSAGE_INDEX.judged(
            about, f"messageIndexEnable={index}", Level.PROBLEM if index != "true" else None
        )
    hours = _number(settings, "fileReservedTime")
    if hours is not None:
        seen = f"fileReservedTime={hours:g} h, OUTBOX_BROKER_RETENTION={expected.broker_retention:g} s"
        short = hours * 3600 < expected.broker_retention
        yield subject.BROKER_RETENTION.judged(about, seen, Level.WARNING if short else None)


def _durability(about: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    for name, weak, it in (
        ("flushDiskType", "ASYNC_FLUSH", subject.FLUSH_TYPE),
        ("brokerRole", "ASYNC_MASTER", subject.BROKER_ROLE),
    ):
        if name in settings:
            yield it.judged(about, f"{name}={settings[name]}", _note_if(settings[name] == weak))


def _switches(about: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    permission = _number(settings, "brokerPermission")
    if permission is not None:
        closed = None if _open(int(permission)) else Level.WARNING
        yield subject.BROKER_PERMISSION.judged(about, f"brokerPermission={permission:g}", closed)
    for name, wrong, it in (
        ("autoCreateTopicEnable", "true", subject.AUTO_TOPIC),
        ("timerWheelEnable", "false", subject.TIMER_WHEEL),
    ):
        if name in settings:
            yield it.judged(about, f"{name}={settings[name]}", _note_if(settings[name] == wrong))


def _open(permission: int) -> bool:
    return permission & _READ != 0 and permission & _WRITE != 0


def _note_if(found: object) -> Level | None:
    return Level.NOTE if found else None


def _number(settings: Mapping[str, str], name: str) -> float | None:
    """None: the broker does not say, or says no number."""
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return None
