"""AWS's binary event streams, as far as one event with a payload."""

from __future__ import annotations

import struct
import zlib

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7  # the type of a header's value


def message(event: str, payload: bytes) -> bytes:
    """One event: its lengths, a checksum of these, its headers, its payload, a checksum of all that."""
    headers = b"".join(
        _header(name, value)
        for name, value in (
            (":event-type", event),
            (":content-type", "application/octet-stream"),
            (":message-type", "event"),
        )
    )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    checked = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return checked + struct.pack(">I", zlib.crc32(checked))


def _header(name: str, value: str) -> bytes:
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _STRING, len(value)) + value.encode()
