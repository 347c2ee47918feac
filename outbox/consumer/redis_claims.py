"""Claims in Redis: one key per claim, ``P|token|hash`` while somebody works, ``D||hash`` once the effect took place.

Each step is one Lua script that compares the token, so that a repeat of it after a lost answer changes nothing, and
nobody ends what another one owns. Times to live are Redis' own; no other clock decides. What a consumer forgets when
Redis forgets (flush, eviction, a fail-over that loses writes) happens again; nothing is lost.
"""

import re
from hashlib import sha256
from typing import Any, Final

from outbox.consumer.claims import Claim
from outbox.consumer.errors import StoreAway
from outbox.consumer.leases import Busy, Claimed, Contradicted, Finished
from outbox.errors import SettingsError
from outbox.identity import fresh_number

try:
    from redis import Redis as Redis
    from redis import exceptions as exceptions

    from outbox.consumer.round_trips import RoundTrips
except ModuleNotFoundError as error:
    raise SettingsError(f"{error}: install it with: pip install 'rocketmq-outbox[redis]'") from error

_CLAIM: Final = """
local value = redis.call('GET', KEYS[1])
local mine = 'P|' .. ARGV[1] .. '|' .. ARGV[2]
if not value or value == mine then
    redis.call('SET', KEYS[1], mine, 'PX', ARGV[3])
    return {'claimed', 0}
end
if string.sub(value, -string.len(ARGV[2])) ~= ARGV[2] then
    return {'other', 0}
end
if string.sub(value, 1, 2) == 'D|' then
    return {'done', 0}
end
return {'busy', redis.call('PTTL', KEYS[1])}
"""
_RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= 'P|' .. ARGV[1] .. '|' .. ARGV[2] then
    return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
# A key that is gone has no other owner, and the effect took place: remembering it can only spare a repeat.
_COMPLETE: Final = """
local value = redis.call('GET', KEYS[1])
local done = 'D||' .. ARGV[2]
if value and value ~= done and value ~= 'P|' .. ARGV[1] .. '|' .. ARGV[2] then
    return 0
end
redis.call('SET', KEYS[1], done, 'PX', ARGV[3])
return 1
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == 'P|' .. ARGV[1] .. '|' .. ARGV[2] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""

#: No answer, or the answer that nothing can be written now, or not by us: no message is to blame. The client's classes
#: stand for some of the error codes...
_AWAY: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.NoPermissionError,
    exceptions.NoScriptError,  # flushed again after it was loaded
)
#: ... and these come as they are: disk full, replicas missing, a script that hangs. Before Redis 7 a script's error
#: follows its place: "Error running script (...): @user_script: 5: -READONLY You can't write ...".
#: What a script may not call has no code since Redis 7 (``scriptCall`` in its script.c), and another text in 7.2.
_CANNOT_WRITE: Final = re.compile(
    r"(?:^|: -)(?:MISCONF|NOREPLICAS|BUSY|OOM|READONLY|NOPERM) "
    r"|(?:^|: )The user executing the script can't |^ACL failure in script"
)


class RedisClaims:
    """The claims of one Redis, or of one Redis cluster (the keys of a consumer share a hash tag)."""

    def __init__(self, client: Redis, retention: float) -> None:
        self._retention = retention
        self._trips = RoundTrips(client)
        self._claim = client.register_script(_CLAIM)
        self._renew = client.register_script(_RENEW)
        self._complete = client.register_script(_COMPLETE)
        self._release = client.register_script(_RELEASE)

    def claim(self, claim: Claim, lease: float) -> Claimed | Finished | Busy | Contradicted:
        """Sets the key if it is not there."""
        token = fresh_number()
        answer, left = self._run(self._claim, claim, token, lease)
        word = answer if isinstance(answer, str) else answer.decode()
        if word == "busy":
            return Busy(max(0.0, left / 1000))
        if word == "other":
            return Contradicted("its key was used by another message; one business fact needs one key of its own")
        return Claimed(token) if word == "claimed" else Finished()

    def renew(self, claim: Claim, token: int, lease: float) -> bool:
        """Never brings a key back: one that is gone may have been somebody else's meanwhile."""
        return bool(self._run(self._renew, claim, token, lease))

    def complete(self, claim: Claim, token: int) -> bool:
        """Remembers the effect for the retention."""
        return bool(self._run(self._complete, claim, token, self._retention))

    def release(self, claim: Claim, token: int) -> None:
        """Deletes the key if it is ours."""
        self._run(self._release, claim, token, 0.0)

    def _run(self, script: Any, claim: Claim, token: int, seconds: float) -> Any:
        with Reachable():
            arguments = [token, fingerprint(claim), max(1, round(seconds * 1000))]
            return self._trips.call(script, redis_key(claim.consumer, claim.key), arguments)


def redis_key(consumer: str, key: bytes) -> bytes:
    """A claim's key in Redis; those of one consumer share a hash tag."""
    return b"outbox:{" + consumer.encode() + b"}:" + key


def fingerprint(claim: Claim) -> str:
    """What the message is, for telling another one under the same key."""
    return sha256(claim.topic.encode() + b"\x00" + claim.payload_hash).hexdigest()


class Reachable:
    """A block in which what Redis cannot do at all now is raised as ``StoreAway``.

    Entered several times for each message: a generator (``contextmanager``) takes four times as long.
    """

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Any other error goes on as it is."""
        if isinstance(error, _AWAY) or (isinstance(error, exceptions.RedisError) and _cannot_write(error)):
            raise StoreAway(f"Redis: {error}") from error


def _cannot_write(error: Exception) -> bool:
    return _CANNOT_WRITE.search(str(error)) is not None
