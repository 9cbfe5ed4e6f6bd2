"""When an endpoint calls for people: the numbers of its alarms."""

import math
from dataclasses import dataclass, fields

from stacks.checks import require

# Where each may lie. SageMaker gives up on an answer after 60 s; a share of 0 % would be an alarm for every request.
_BOUNDS = {
    "p99_latency_seconds": (0.05, 60.0),
    "fault_percent": (0.01, 100.0),
    "busy_percent": (0.01, 100.0),
    "option_mass": (0.001, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What an endpoint's alarms compare with; what is normal depends on model, instance type and prompts."""

    # The slowest hundredth of the answers takes longer than this.
    p99_latency_seconds: float = 20.0
    # More of the requests than this end in a fault of ours: a 5xx but for 503, or no answer at all.
    fault_percent: float = 1.0
    # More of the requests than this are refused with 503 because they would not end in time. Decision endpoints only.
    busy_percent: float = 5.0
    # The mean probability of the declared options among all tokens is below this: the model would rather say
    # something else, as with a wrong template. Decision endpoints only.
    option_mass: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            low, high = _BOUNDS[field.name]
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            allowed = f"a number from {low:g} to {high:g}"
            require(is_number and low <= value <= high, f"Thresholds.{field.name}", value, allowed)
