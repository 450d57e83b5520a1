"""Planted bugs of whole workers: what delivers, saves and hands over, one rule switched off at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.core.group import Coordination
from sim import coordinated_mutations
from sim import worker_mutations as mutations
from sim.bug import Bug, Replacement


def _bug(
    name: str,
    rule: str,
    focus: tuple[str, ...],
    change: Callable[[], Replacement | list[Replacement]] | None = None,
    *,
    kind: Coordination | None = None,
) -> Bug:
    return Bug(name=name, rule=rule, focus=focus, change=change, kind=kind, has_workers=True)


WORKERS: Final = (
    _bug(
        "deadline is not checked",
        "an owner processes within its deadline",
        ("cut", "pause"),
    ),
    _bug(
        "deadline is not checked within a batch",
        "the deadline is checked again while a batch is iterated",
        ("cut", "pause", "slow code", "one by one", "long batches"),
    ),
    _bug(
        "the furthest lane counts",
        "a checkpoint is the lowest that any lane owes",
        ("lanes", "persists"),
        mutations.furthest_lane_counts,
    ),
    _bug(
        "a child begins before its parent has ended here",
        "a child does not begin while a parent is being finished",
        ("split", "slow_endings", "pause"),
        mutations.preceded_by_nothing,
    ),
    _bug(
        "children come first",
        "a child waits for its ancestors",
        ("split",),
        coordinated_mutations.children_first,
        kind=Coordination.COORDINATED,
    ),
    _bug(
        "a failed batch is skipped",
        "what failed is handed out again before anything after it",
        ("strict", "raises"),
        mutations.failed_is_skipped,
    ),
    _bug(
        "a failed batch is overtaken",
        "under strict nothing overtakes",
        ("strict", "raises"),
        mutations.failed_comes_later,
    ),
    _bug(
        "strict gives a record up",
        "strict tries in place, for as long as it takes",
        ("strict", "poison"),
        mutations.strict_sets_aside,
    ),
    _bug(
        "the rest of a failed batch is lost",
        "to find the record that fails, less is handed out at a time",
        ("best_tried", "poison", "one by one"),
        mutations.narrowed_to_the_first,
    ),
    _bug(
        "set aside is done before it is durable",
        "a record that is set aside is done when it is durable there",
        ("best_tried", "poison", "fail", "persists"),
        mutations.done_before_it_is_durable,
    ),
    _bug(
        "a record that fails is dropped",
        "never a silent skip",
        ("best_tried", "poison"),
        mutations.never_set_aside,
    ),
    _bug(
        "marks are not sent",
        "a move repeats nothing that is done, in any lane",
        ("lanes", "newcomer", "stop", "saves"),
        mutations.no_marks,
    ),
    _bug(
        "marks are not read",
        "what earlier owners' lanes have done is left out",
        ("lanes", "newcomer", "stop", "saves"),
        mutations.marks_are_not_read,
    ),
    _bug(
        "marks push each other out",
        "marks of the same lanes are one set",
        ("lanes", "newcomer", "stop", "stop policy", "raises"),
        mutations.marks_push_each_other_out,
    ),
    _bug(
        "released as it was persisted",
        "what was declared done is persisted before a planned hand-over",
        ("newcomer", "stop", "saves"),
        mutations.released_as_it_was_persisted,
    ),
    _bug(
        "release before the checkpoint",
        "a release carries the final checkpoint",
        ("newcomer", "stop", "saves"),
    ),
    _bug(
        "released while user code runs",
        "what runs finishes before a hand-over",
        ("newcomer", "stop", "slow code"),
        mutations.released_while_code_runs,
    ),
    _bug(
        "given up with all that was given",
        "who is given up has done what it declared done",
        ("gives up", "slow code", "stop", "newcomer"),
        mutations.given_up_with_all_that_was_given,
    ),
    _bug(
        "saves count after a loss",
        "LOST cannot save",
        ("pause", "cut"),
        mutations.saves_after_a_loss,
    ),
    _bug(
        "ended whatever shutdown says",
        "the end is saved for the user only if shutdown returned",
        ("split", "merge", "bad_endings"),
        mutations.ended_whatever_shutdown_says,
    ),
    _bug(
        "ended by the first lane",
        "a shard has ended when all its lanes have",
        ("split", "merge", "lanes"),
        mutations.ended_by_the_first_lane,
    ),
    _bug(
        "going back is ignored",
        "process may return an offset to go back to",
        ("goes_back",),
        mutations.never_goes_back,
    ),
    _bug(
        "what comes again hides what was never given",
        "the checkpoint never passes what was not given out",
        ("goes_back", "persists", "saves", "single records"),
        mutations.hidden_behind_what_comes_again,
    ),
    _bug(
        "the checkpoint falls back",
        "a planned hand-over repeats nothing that was declared done",
        ("lanes", "newcomer", "stop", "raises"),
        mutations.falls_back,
    ),
    _bug(
        "who begins anew forgets what its lanes have done",
        "a planned hand-over repeats nothing that was declared done",
        ("lanes", "bad_endings", "merge", "split", "newcomer", "stop", "strict", "raises", "persists"),
        mutations.only_what_was_fetched_counts,
    ),
    _bug(
        "what is gone takes its next tenure with it",
        "faults over, every shard is consumed",
        ("pause", "cut", "slow_endings"),
        mutations.gone_with_the_next,
    ),
    _bug(
        "deaf while it reads",
        "faults over, every record reaches user code",
        ("slow store", "best_tried"),
        mutations.deaf_while_it_reads,
    ),
    _bug(
        "begins again under its epoch",
        "after a release nothing is done under its epoch",
        ("newcomer", "stop", "slow store"),
        mutations.begins_again,
    ),
    _bug(
        "what was done comes again after the deadline",
        "nothing comes again that user code declared done, unless it asks",
        ("outage", "slow code", "one by one", "long batches", "saves_midway"),
        mutations.all_of_it_after_the_deadline,
    ),
    _bug(
        "nobody waits for who polls",
        "a planned hand-over waits for what user code has in its hands",
        ("polled", "newcomer", "stop", "slow code", "one by one", "long batches"),
        mutations.nobody_waits_for_who_polls,
    ),
    _bug(
        "what was withdrawn is given",
        "what lies on the desk may be had only as long as the tenure says so",
        ("polled", "newcomer", "stop", "pause"),
        mutations.withdrawn_is_given,
    ),
    _bug(
        "a read from before a seek counts",
        "who seeks goes on there, whatever was being read",
        ("polled", "slow code", "one by one", "long batches"),
        mutations.a_read_from_before_a_seek_counts,
    ),
)
