"""What a daemon tells probes and scrapers, asked over HTTP as they ask."""

import json
from http.client import HTTPConnection, HTTPException
from typing import Any


def got(port: int, path: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type") or "", response.read().decode()
    finally:
        connection.close()


def probed(port: int, path: str) -> tuple[int, Any]:
    """Status, and what was told; 0 and {} while nobody answers."""
    try:
        status, _, body = got(port, path)
    except (OSError, HTTPException):
        return 0, {}
    return status, json.loads(body)
