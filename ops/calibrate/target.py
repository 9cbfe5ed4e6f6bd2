"""Whom a calibration asks: an environment's endpoint, or an adapter directly."""

from __future__ import annotations

from ops.calibrate.answers import Decide
from ops.target import client_for


def decide_by(env: str | None, endpoint: str | None, endpoint_url: str | None, local: str | None) -> Decide:
    """What asks one plain decision, a busy endpoint again. Raises as `client_for`."""
    return client_for(env, endpoint, endpoint_url, local).decide
