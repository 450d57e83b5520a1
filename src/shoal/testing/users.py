"""Users for tests of servers: their policies and keys, and a server that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import shoal
from shoal import Hub
from shoal.core.access import AccessKey, Statement
from shoal.remote.signing import Credentials
from shoal.server.options import ServerOptions
from shoal.server.sealing import Seal, new_key_id, new_secret
from shoal.store.sql.store import SQLStore
from shoal.testing.serving import served
from shoal.wire.policies import parse_policy, policy_text

ALL: Final = '{"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'


@dataclass
class Door:
    """A server, and its users."""

    store_url: str
    url: str
    seal: Seal
    store: SQLStore

    def key_of(self, user: str, *policies: str, key: Credentials | None = None) -> Credentials:
        """A new user with these policies, and a key, which is made up unless it is given."""
        self.store.access.create_user(user, 0)
        for number, text in enumerate(policies):
            parse_policy(text)
            self.store.access.save_policy(f"{user}-{number}", text, 0, replace=False)
            self.store.access.attach(user, f"{user}-{number}")
        made = key or Credentials(key=new_key_id(), secret=new_secret())
        sealed = self.seal.seal(made.key, made.secret)
        self.store.access.create_key(
            AccessKey(id=made.key, user=user, is_enabled=True, created_ms=0, sealed=sealed)
        )
        return made

    def url_of(self, given: Credentials) -> str:
        return self.url.replace("http://", f"http://{given.key}:{given.secret}@")

    @contextmanager
    def hub_of(self, user: str, *policies: str) -> Iterator[Hub]:
        with shoal.connect(self.url_of(self.key_of(user, *policies))) as hub:
            yield hub


@contextmanager
def guarded(store_url: str, options: ServerOptions | None = None) -> Iterator[Door]:
    """A server with a user who has no key: nobody gets in yet. The environment has a master key."""
    store = SQLStore.open(store_url)
    try:
        seal = Seal.from_environment()
        assert seal is not None, "the environment has no master key"
        store.access.create_user("first", 0)
        with served(store_url, options) as url:
            yield Door(store_url, url, seal, store)
    finally:
        store.close()


def allowed(*lines: tuple[str, str]) -> str:
    """A policy that allows actions, each on a resource."""
    return policy_text(
        [Statement(is_allow=True, actions=(action,), resources=(where,)) for action, where in lines]
    )


def of_the_document(stream: str, group: str) -> str:
    """The policy of the Consumer Library's document, for one stream, as a resource, and one group."""
    return allowed(
        ("log:GetCursorOrData", stream),
        ("log:CreateConsumerGroup", f"{stream}/consumergroup/*"),
        ("log:ListConsumerGroup", f"{stream}/consumergroup/*"),
        ("log:ConsumerGroupUpdateCheckPoint", f"{stream}/consumergroup/{group}"),
        ("log:ConsumerGroupHeartBeat", f"{stream}/consumergroup/{group}"),
        ("log:GetConsumerGroupCheckPoint", f"{stream}/consumergroup/{group}"),
    )
