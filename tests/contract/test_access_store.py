"""Users, keys, policies and nonces, on every database."""

from collections.abc import Iterator

import pytest

from shoal import Hub
from shoal.access_port import AccessStore
from shoal.core.access import AccessKey
from shoal.core.errors import (
    PolicyExists,
    PolicyInUse,
    UnknownAccessKey,
    UnknownPolicy,
    UnknownUser,
    UserExists,
)
from shoal.core.names import stream_name
from shoal.store.sql.access import PURGE_EVERY
from shoal.store.sql.store import SQLStore


@pytest.fixture
def access(shared_url: str) -> Iterator[AccessStore]:
    store = SQLStore.open(shared_url)
    yield store.access
    for user in store.access.list_users():
        store.access.delete_user(user.name)
    for policy in store.access.list_policies():
        store.access.delete_policy(policy.name)
    store.close()


def key_of(user: str, name: str = "SK1") -> AccessKey:
    return AccessKey(id=name, user=user, is_enabled=True, created_ms=7, sealed=b"\x00sealed\xff")


def test_users_keys_and_policies_come_and_go(access: AccessStore) -> None:
    assert not access.has_users()
    access.create_user("ann", 5)
    assert access.has_users()
    with pytest.raises(UserExists):
        access.create_user("ann", 6)
    with pytest.raises(UnknownUser):
        access.create_key(key_of("Ann"))  # Names are compared byte by byte.
    access.create_key(key_of("ann"))
    assert access.list_keys("ann") == access.list_keys(None) == [key_of("ann")]
    access.save_policy("p", "one", 5, replace=False)
    with pytest.raises(PolicyExists):
        access.save_policy("p", "two", 5, replace=False)
    access.save_policy("p", "two", 5, replace=True)
    access.attach("ann", "p")
    access.attach("ann", "p")
    grant = access.grant("SK1")
    assert grant is not None
    assert (grant.key, list(grant.policies)) == (key_of("ann"), ["two"])
    (user,) = access.list_users()
    assert (user.name, user.keys, user.policies) == ("ann", ("SK1",), ("p",))
    (policy,) = access.list_policies()
    assert (policy.name, policy.text, policy.users) == ("p", "two", ("ann",))
    with pytest.raises(PolicyInUse):
        access.delete_policy("p")
    access.enable_key("SK1", False)
    assert not access.list_keys("ann")[0].is_enabled
    access.detach("ann", "p")
    access.detach("ann", "p")
    access.delete_policy("p")
    access.delete_user("ann")
    assert access.grant("SK1") is None


def test_what_is_not_there_is_missed_by_its_name(access: AccessStore) -> None:
    access.create_user("ann", 5)
    for user, policy, error in (("bob", "p", UnknownUser), ("ann", "p", UnknownPolicy)):
        with pytest.raises(error):
            access.attach(user, policy)
        with pytest.raises(error):
            access.detach(user, policy)
    with pytest.raises(UnknownUser):
        access.delete_user("bob")
    with pytest.raises(UnknownUser):
        access.list_keys("bob")
    with pytest.raises(UnknownAccessKey):
        access.delete_key("SK1")
    with pytest.raises(UnknownAccessKey):
        access.enable_key("SK1", True)
    with pytest.raises(UnknownPolicy):
        access.delete_policy("p")
    assert access.grant("SK1") is None


def test_a_nonce_is_kept_once_until_its_time_is_over(access: AccessStore) -> None:
    assert access.keep_nonce("a" * 64, 1_000, 900)
    assert not access.keep_nonce("a" * 64, 1_000, 900)
    assert access.keep_nonce("A" * 64, 1_000, 900)


def test_nonces_whose_time_is_over_are_forgotten_whatever_times_clients_choose(access: AccessStore) -> None:
    """What a client chose decided it: with the right dates, none was ever forgotten."""
    assert access.keep_nonce("c" * 64, 1_000, 900)
    for number in range(PURGE_EVERY):
        assert access.keep_nonce(f"{number:064}", 30_001, 20_000)
    assert access.keep_nonce("c" * 64, 30_001, 20_000)
    assert not access.keep_nonce(f"{0:064}", 30_001, 20_000)


def test_numbers_lead_to_names(access: AccessStore, shared_hub: Hub) -> None:
    name = "door/orders"
    stream = shared_hub.create_stream(name, shards=1)
    shared_hub.create_group(name, "billing")
    group = shared_hub.service.groups.find(stream_name(name), "billing")
    assert access.stream_place(stream.id) == stream_name(name)
    assert access.group_place(group.id) == (stream_name(name), "billing")
    shared_hub.delete_stream(name)
    assert access.stream_place(stream.id) is None
    assert access.group_place(group.id) is None
    assert access.group_place(10**9) is None
