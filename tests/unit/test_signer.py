"""Whom a client signs for: the server that a connection leads to, or, behind some balancers, any of them."""

from shoal.core.errors import SignedForAnother
from shoal.remote.signing import Credentials, Signer

PLACE = ("balancer", 7400)
ANY = "any server of the store"


def test_where_connections_end_with_their_answers_a_server_that_comes_back_means_several() -> None:
    signer = _signer()
    assert [_told(signer, server, is_kept=False) for server in ("a", "b", "c")] == ["a", "b", "c"]
    assert _told(signer, "a", is_kept=False) == ANY
    assert signer.server_at(PLACE) == ANY


def test_a_server_that_is_started_anew_again_and_again_is_signed_for_by_its_own_name() -> None:
    signer = _signer()
    for life in range(200):
        assert _told(signer, f"life {life}", is_kept=False) == f"life {life}"
        assert signer.server_at(PLACE) == f"life {life}"


def test_two_requests_that_learn_of_one_server_at_once_are_signed_for_it() -> None:
    signer = _signer()
    assert [_told(signer, "a", is_kept=False) for _ in range(2)] == ["a", "a"]


def test_connections_that_are_kept_are_each_signed_for_the_server_that_they_lead_to() -> None:
    signer = _signer()
    for server in ("a", "b", "a", "b"):
        assert _told(signer, server, is_kept=True) == server


def test_a_server_that_is_met_at_another_place_has_not_come_back() -> None:
    signer = _signer()
    for place in (("one", 7400), ("two", 7400)):
        for server in ("a", "b"):
            refusal = SignedForAnother(server=server, store=ANY)
            assert signer.learn(place, refusal, is_again=False, is_kept=False) == server


def test_two_servers_on_one_connection_mean_that_there_are_several() -> None:
    signer = _signer()
    assert _told(signer, "a", is_kept=True) == "a"
    assert _told(signer, "b", is_again=True, is_kept=True) == ANY


def _signer() -> Signer:
    return Signer(Credentials(key="SK1", secret="not told"))


def _told(signer: Signer, server: str, *, is_kept: bool, is_again: bool = False) -> str:
    """Whom it signs for once this server has refused a request at the one place."""
    return signer.learn(PLACE, SignedForAnother(server=server, store=ANY), is_again=is_again, is_kept=is_kept)
