"""ACL signatures: who asks, proved by a key that both sides know (``AclSigner``, ``AclUtils`` of RocketMQ)."""

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from outbox.brokers.remoting.commands import Sign

_ACCESS_KEY: Final = "AccessKey"
_SIGNATURE: Final = "Signature"


def signature(access_key: str, secret_key: str) -> Sign:
    """Signs requests as a user of the broker.

    HMAC-SHA1, in base64, over the values of all fields in the order of their names, and the body behind them.
    """
    secret = secret_key.encode()

    def sign(fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """The fields with access key and signature."""
        named = {**fields, _ACCESS_KEY: access_key}
        # As Java encodes: half a surrogate pair becomes a question mark.
        values = "".join(named[name] for name in sorted(named)).encode(errors="replace")
        digest = hmac.digest(secret, values + body, "sha1")
        return {**named, _SIGNATURE: base64.b64encode(digest).decode("ascii")}

    return sign
