"""Settings of a producer are checked when they are made, each by its own name."""

import pytest

from shoal import ProducerOptions
from shoal.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("linger_s", float("inf")),
        ("linger_s", 1e10),
        ("linger_s", float("nan")),
        ("close_timeout_s", float("inf")),
        ("delivery_timeout_s", -1),
        ("batch_bytes", 1.5),
        ("batch_bytes", 0),
        ("batch_records", True),
        ("buffer_bytes_max", 1000),
        ("max_attempts", 0),
        ("calls_max", 0),
        ("calls_max", 17),
        ("strategy", "random"),
        ("outbox", "sqlite:///own.db"),
    ],
)
def test_a_setting_outside_its_bounds_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}="):
        ProducerOptions(**{field: value})  # type: ignore[arg-type]
