"""Groups on the command line: durations and positions in words, what is new in a history, looking again."""

from datetime import UTC, datetime, timedelta

import pytest

from shoal.cli.group_history import newer
from shoal.cli.group_output import changes_text, history_line, shards_text, span, users_text, where_text
from shoal.cli.repeating import looks
from shoal.core.describing import changed, joined_ms
from shoal.core.errors import StoreUnavailable, UnknownGroup
from shoal.core.group import GroupSettings, Note

AT = datetime(2026, 1, 31, 8, 0, 0, 120_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0, "0s"),
        (0.04, "0.0s"),
        (3.21, "3.2s"),
        (59, "59s"),
        (60, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (7384, "2h 3m"),
        (90_000, "1d 1h"),
        (100_000_000, "1,157d 9h"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, wanted: str) -> None:
    assert span(seconds) == wanted


def test_a_position_is_told_in_words() -> None:
    assert where_text("latest") == "latest"
    assert where_text(AT) == "2026-01-31T08:00:00Z"
    assert where_text({4: 0, 3: 1200}) == "offset 1,200 of shard 3, offset 0 of shard 4"


def test_shards_and_consumers_are_listed() -> None:
    assert shards_text([3]) == "shard 3"
    assert shards_text([3, 4, 7]) == "shards 3, 4 and 7"
    assert users_text(["ada"]) == "ada uses"
    assert users_text([f"w{n}" for n in range(7)]) == "w0, w1, w2, w3, w4 and 2 more use"


def test_changes_are_told_with_both_values() -> None:
    old, new = GroupSettings(), GroupSettings(in_order=False, timeout_ms=1500, handover_timeout_ms=60_000)
    assert changed(old, new) == ["in_order", "timeout_ms", "handover_timeout_ms"]
    assert changes_text(old, new) == "in_order yes → no, timeout 20s → 1,500ms, handover_timeout none → 1m"
    assert changes_text(old, old) == "nothing changed, it was so already"


def test_a_line_of_history_keeps_its_columns_and_harms_no_terminal() -> None:
    moving = Note(kind="moving", consumer="ada", shard=3, epoch=7, detail="to bob")
    assert history_line(AT, moving) == (
        "2026-01-31T08:00:00.120Z  moving      shard 3     epoch 7     ada  to bob"
    )
    refused = Note(kind="refused", detail="it raised\n\x1b[2J")
    assert history_line(AT, refused).endswith(r"it raised\n\x1b[2J")


def test_a_consumer_is_there_since_it_last_joined() -> None:
    lines = [
        (1, Note(kind="joined", consumer="ada")),
        (2, Note(kind="left", consumer="ada")),
        (3, Note(kind="joined", consumer="bob")),
        (4, Note(kind="joined", consumer="ada")),
    ]
    assert joined_ms(lines) == {"ada": 4, "bob": 3}


# --- What is new in a history. ----------------------------------------------------------------------


def line(number: int) -> tuple[datetime, Note]:
    return AT + timedelta(seconds=number), Note(kind="updated", detail=str(number))


LINES = [line(n) for n in range(10)]


def test_what_follows_the_lines_seen_is_new() -> None:
    assert newer(LINES[:4], LINES[:4]) == []
    assert newer(LINES[:4], LINES[:7]) == LINES[4:7]
    assert newer([], LINES) == LINES


def test_lines_that_were_forgotten_meanwhile_are_not_told_again() -> None:
    assert newer(LINES[:6], LINES[4:9]) == LINES[6:9]
    assert newer(LINES[:6], LINES[3:6]) == []


def test_a_look_that_does_not_reach_back_is_all_new() -> None:
    assert newer(LINES[:3], LINES[5:]) == LINES[5:]


def test_a_line_that_comes_late_is_told_alone() -> None:
    """Two consumers of a leased group wrote at once, and the later line could be seen first."""
    assert newer([line(1), line(3)], [line(1), line(2), line(3), line(4)]) == [line(2), line(4)]


def test_equal_lines_are_told_as_often_as_they_happened() -> None:
    assert newer([line(1), line(1)], [line(1)] * 3) == [line(1)]


# --- Looking again. ---------------------------------------------------------------------------------


class Answers:
    """A look that gives one answer after the other, and raises those that are errors."""

    def __init__(self, *answers: str | Exception) -> None:
        self._left = list(answers)

    def __call__(self) -> str:
        answer = self._left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_store_that_is_away_for_a_while_ends_no_watch(capsys: pytest.CaptureFixture[str]) -> None:
    away = StoreUnavailable("gone")
    seen = looks(Answers("one", away, away, "two", UnknownGroup(stream="s", group="g")), 0.0)
    assert [next(seen), next(seen)] == ["one", "two"]
    assert capsys.readouterr().err.splitlines() == [
        "note: the store cannot be reached: gone; looking again every 0 s",
        "note: the store is there again",
    ]
    with pytest.raises(UnknownGroup):
        next(seen)


def test_the_first_look_must_succeed() -> None:
    with pytest.raises(StoreUnavailable):
        next(looks(Answers(StoreUnavailable("gone")), 0.0))
