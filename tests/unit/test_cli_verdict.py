"""The demo's check finds what it is there to find."""

from shoal.cli.traffic import verify

SENT = {"a": [1, 3, 5], "b": [2, 4]}
GOOD = [("a", 1), ("b", 2), ("b", 4), ("a", 3), ("a", 5)]


def test_keys_in_order_are_good_however_they_are_mixed() -> None:
    verdict = verify(SENT, GOOD)
    assert verdict.is_good
    assert (verdict.sent, verdict.read, verdict.keys) == (5, 5, 2)


def test_a_lost_record_is_found() -> None:
    verdict = verify(SENT, GOOD[:-1])
    assert (verdict.lost, verdict.keys_out_of_order) == (1, 0)
    assert not verdict.is_good


def test_a_record_that_is_read_twice_is_found() -> None:
    verdict = verify(SENT, [*GOOD, ("a", 1)])
    assert (verdict.twice, verdict.keys_out_of_order) == (1, 0)
    assert not verdict.is_good


def test_a_key_out_of_order_is_found() -> None:
    verdict = verify(SENT, [("a", 3), ("a", 1), ("a", 5), ("b", 2), ("b", 4)])
    assert (verdict.keys_out_of_order, verdict.lost, verdict.twice) == (1, 0, 0)
    assert not verdict.is_good


def test_a_record_that_nobody_sent_is_found() -> None:
    assert verify(SENT, [*GOOD, ("c", 9)]).unknown == 1
    assert verify(SENT, [*GOOD, ("a", 9)]).unknown == 1


def test_nothing_sent_proves_nothing() -> None:
    assert not verify({}, []).is_good
