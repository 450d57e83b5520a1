"""URLs of servers: which are some, and what is shown of those that are not."""

import pytest

import shoal
from shoal.core.errors import InvalidUrl
from shoal.remote.address import servers_of
from shoal.remote.signing import ID_VARIABLE, SECRET_VARIABLE, credentials

HUSH = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("http://a", [("a", 7400)]),
        ("http://a:1,b/", [("a", 1), ("b", 7400)]),
        ("http://[::1]:7400", [("::1", 7400)]),
    ],
)
def test_a_server_is_named_by_host_and_port_and_several_side_by_side(
    url: str, servers: list[tuple[str, int]]
) -> None:
    assert servers_of(url) == ("http", servers)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"http://KEY:{HUSH}", "http://KEY:***"),
        (f"https://KEY:{HUSH}/", "https://KEY:***"),
        (f"http://KEY:{HUSH}/{HUSH}", "http://KEY:***/…"),
        (f"http://KEY:12/{HUSH}", "http://KEY:12/…"),
        (f"http://KEY:{HUSH}?{HUSH}", "http://KEY:***/…"),
        (f"http://KEY:{HUSH}#{HUSH}", "http://KEY:***/…"),
        (f"http://KEY:{HUSH}[", "http://KEY:***"),
        (f"http://KEY:{HUSH}℀", "http://KEY:***"),
        (f"http://a:7400,KEY:{HUSH}", "http://a:7400,KEY:***"),
        (f"http://KEY:{HUSH}@", "http://"),
        (f"http://KEY:{HUSH}@a[", "http://a[:***"),
        (f"http://KEY:{HUSH}@a:7400/path", "http://a:7400/…"),
        ("http://KEY:123456", "http://KEY:***"),
        ("http://[::1", "http://[:***"),
    ],
)
def test_a_url_that_names_no_server_is_refused_and_no_secret_is_shown(url: str, shown: str) -> None:
    with pytest.raises(InvalidUrl, match=r"http://KEY:SECRET@host:7400") as raised:
        shoal.connect(url)
    assert raised.value.value == shown
    assert HUSH not in str(raised.value)
    assert raised.value.__context__ is None  # What Python says of a port shows it.


def test_also_what_is_wrong_in_the_environment_is_told_without_a_secret() -> None:
    for given in ({ID_VARIABLE: "KEY"}, {ID_VARIABLE: "no key", SECRET_VARIABLE: HUSH}):
        with pytest.raises(InvalidUrl) as raised:
            credentials(f"http://KEY:{HUSH}", given)
        assert HUSH not in str(raised.value)
