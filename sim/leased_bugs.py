"""Planted bugs of leased groups: every rule, switched off, one at a time.

Two rules are not here, since no promise breaks without them: undoing a steal whose thief is gone, and that a
row which its taker neglects is anyone's; both only save time. First-seen is stamped after the answer here,
too, but a taker that rests four times as long as it looked does no harm if it is not.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shoal.core.group import Coordination
from sim import leased_mutations as mutations
from sim.bug import Bug

_Bug = partial(Bug, kind=Coordination.LEASED)

LEASED: Final = (
    _Bug(
        name="deadline is not checked",
        focus=("cut", "pause"),
        rule="a deadline, checked before a batch is handed to user code",
    ),
    _Bug(
        name="deadline from the answer",
        focus=("cut", "slow store"),
        rule="a deadline counts from when it was asked",
    ),
    _Bug(
        name="deadline by the clock that stops", focus=("suspend",), rule="the clock that goes on in suspend"
    ),
    _Bug(
        name="no margin",
        focus=("cut",),
        rule="shorter by a margin for clock rates",
        change=mutations.no_margin,
    ),
    _Bug(
        name="a renewal is taken for the one before it",
        focus=("unanswered commits",),
        rule="a deadline counts from when it was asked",
        change=mutations.mistaken_for_the_one_before,
    ),
    _Bug(name="reads are not fenced", focus=("pause", "rewind"), rule="an owner's read shows its epoch"),
    _Bug(
        name="checkpoints are not fenced",
        focus=("rewind", "reset"),
        rule="fenced checkpoints",
        change=mutations.fenced_ones_save,
    ),
    _Bug(
        name="epochs restart",
        focus=("recreate group",),
        rule="epochs come from one sequence per store that never restarts",
    ),
    _Bug(
        name="epoch is not raised",
        focus=("crash",),
        rule="an epoch rises with every change of owner",
        change=mutations.same_epoch,
    ),
    _Bug(
        name="watch is not capped",
        focus=("stall", "crash"),
        rule="at most one heartbeat interval at a time",
        change=mutations.uncapped_watch,
    ),
    _Bug(
        name="watch without compare-and-set", focus=("crash",), rule="whoever looks adds by compare-and-set"
    ),
    _Bug(
        name="watch by wall clocks",
        focus=("crash",),
        rule="no clock is ever compared with another",
        change=mutations.watch_by_wall_clocks,
    ),
    _Bug(
        name="watch without the counter",
        focus=("crash",),
        rule="dead when its counter has stood still for the timeout",
        change=mutations.watch_without_the_counter,
    ),
    _Bug(
        name="renewals leave the lease_id",
        focus=("deaf",),
        rule="expiry by lease_id",
        change=mutations.same_lease_id,
    ),
    _Bug(
        name="renewals keep the silence",
        focus=("deaf",),
        rule="the row keeps how long this value has stood still",
        change=mutations.silence_is_kept,
    ),
    _Bug(
        name="changes without compare-and-set",
        focus=("newcomer", "crash"),
        rule="rows change only by compare-and-set",
    ),
    _Bug(
        name="a forked child goes on",
        focus=("fork", "newcomer"),
        rule="an incarnation is void in a forked child",
    ),
    _Bug(
        name="inherits at once",
        focus=("twin", "crash"),
        rule="a newer incarnation gets shards like anyone",
        change=mutations.inherit_at_once,
    ),
    _Bug(
        name="adopts rows of its name",
        focus=("twin", "crash"),
        rule="an incarnation is made at join, never reused",
        change=mutations.adopt_by_name,
    ),
    _Bug(name="barred ones join again", focus=("twin",), rule="NameTaken: it does not rejoin"),
    _Bug(
        name="expired ones take names",
        focus=("twin", "pause", "cut"),
        rule="the newer bars the older",
        change=mutations.names_are_free,
    ),
    _Bug(
        name="unknown ones make rows",
        focus=("recreate group",),
        rule="a recreated row cannot be mistaken for the old one",
        change=mutations.makes_rows_unknown,
    ),
    _Bug(
        name="a group is known by its name",
        focus=("recreate group",),
        rule="a recreated group is another one",
    ),
    _Bug(
        name="release before the checkpoint",
        focus=("newcomer", "stop"),
        rule="hand-over is drain, save, release",
    ),
    _Bug(
        name="a repeated release forgets what was sent",
        focus=("newcomer", "stop", "fail"),
        rule="who has sent a release acts no more under that epoch, whatever the answer",
    ),
    _Bug(
        name="acts after its release", focus=("newcomer", "stop"), rule="who has sent a release acts no more"
    ),
    _Bug(
        name="what was fetched outlives its epoch",
        focus=("pause", "newcomer"),
        rule="whatever was fetched goes with (shard, epoch)",
    ),
    _Bug(
        name="a steal does not wait for the drain",
        focus=("newcomer", "stop"),
        rule="a living owner is never forced",
        change=mutations.take_back_at_once,
    ),
    _Bug(
        name="forced before its deadline",
        focus=("handover", "newcomer", "cut", "slow code"),
        rule="once the deadline has passed",
        change=mutations.lapse_at_once,
    ),
    _Bug(
        name="frozen ones are extended",
        focus=("handover", "newcomer", "slow code"),
        rule="its deadline is no longer extended",
        change=mutations.extend_frozen,
    ),
    _Bug(
        name="reset without a new epoch",
        focus=("rewind",),
        rule="a reset raises epochs",
        change=mutations.reset_unfenced,
    ),
    _Bug(
        name="reset without letting go",
        focus=("rewind", "reset"),
        rule="once their holders have let go",
        change=mutations.reset_frees,
    ),
    _Bug(
        name="children come first",
        focus=("split",),
        rule="a child whose ancestors have not ended is neither taken nor counted",
        change=mutations.children_first,
    ),
    _Bug(
        name="rows before their parents'",
        focus=("split",),
        rule="parents first",
        change=mutations.rows_before_parents,
    ),
    _Bug(
        name="late born at the end",
        focus=("split", "slow store"),
        rule="born later: read from its first offset",
        change=mutations.late_born_at_the_end,
    ),
    _Bug(
        name="empty is not over",
        focus=("empty chain",),
        rule="an empty closed shard is over",
        change=mutations.empty_is_not_over,
    ),
    _Bug(
        name="cleaned up too early",
        focus=("split", "empty chain"),
        rule="cleanup of leases whose shard and descendants are done",
        change=mutations.clean_up_early,
    ),
    _Bug(
        name="what was made again counts",
        focus=("empty chain", "late"),
        rule="a recreated row cannot be mistaken for the old one",
        change=mutations.made_again_counts,
    ),
    _Bug(
        name="counts by the group's",
        focus=("timeout", "cut"),
        rule="states the timeout it counts by",
        change=mutations.count_by_the_groups,
    ),
    _Bug(
        name="shortens late",
        focus=("timeout", "unanswered commits"),
        rule="a shorter one shortens the deadline at once",
        change=mutations.shorten_late,
    ),
    _Bug(
        name="never settles",
        focus=("newcomer",),
        rule="one steals only from a consumer that holds at least two more",
        change=mutations.never_settles,
    ),
    _Bug(
        name="unknown rules decide",
        focus=("other rules", "crash"),
        rule="who does not know the rules does not decide",
        change=mutations.unknown_rules_decide,
    ),
    _Bug(name="forgetting is ignored", focus=("forget", "newcomer"), rule="if the store forgot, epochs jump"),
    _Bug(
        name="no wait after forgetting",
        focus=("forget", "newcomer", "cut"),
        rule="nothing is granted for one timeout",
        change=mutations.no_wait_after_forgetting,
    ),
    _Bug(
        name="forgotten rows are kept",
        focus=("forget", "rewind", "suspend"),
        rule="a revision below one already seen",
        change=mutations.forgotten_rows_are_kept,
    ),
    _Bug(
        name="doubtful epochs go on",
        focus=("forget", "newcomer"),
        rule="if the store forgot, epochs jump",
        change=mutations.doubtful_epochs_go_on,
    ),
)
