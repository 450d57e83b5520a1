"""Planted bugs of coordinated groups: every rule, switched off, one at a time.

One rule is not here, since no promise breaks without it: that a plain hand-over looks at the status of the
one who gets the shard. Every step by which a consumer stops taking shards forgets what was meant for it.
"""

from __future__ import annotations

from typing import Final

from sim import coordinated_mutations as mutations
from sim.bug import Bug

COORDINATED: Final = (
    Bug(
        name="deadline is not checked",
        focus=("cut", "pause"),
        rule="a deadline, checked before a batch is handed to user code",
    ),
    Bug(
        name="deadline from the answer",
        focus=("cut", "late"),
        rule="a deadline counts from when it was asked",
    ),
    Bug(
        name="deadline by the clock that stops", focus=("suspend",), rule="the clock that goes on in suspend"
    ),
    Bug(
        name="no margin",
        focus=("cut",),
        rule="shorter by a margin for clock rates",
        change=mutations.no_margin,
    ),
    Bug(name="reads are not fenced", focus=("pause", "rewind"), rule="an owner's read shows its epoch"),
    Bug(name="checkpoints are not fenced", focus=("pause", "cut", "duplicate"), rule="fenced checkpoints"),
    Bug(
        name="epochs restart",
        focus=("recreate group",),
        rule="epochs come from one sequence per store that never restarts",
    ),
    Bug(
        name="epoch is not raised",
        focus=("crash",),
        rule="an epoch rises with every change of owner",
        change=mutations.same_epoch,
    ),
    Bug(
        name="watch is not capped", focus=("stall", "crash"), rule="at most one heartbeat interval at a time"
    ),
    Bug(name="watch without compare-and-set", focus=("crash",), rule="whoever looks adds by compare-and-set"),
    Bug(
        name="first seen before the answer",
        focus=("cut", "slow store", "lone watcher"),
        rule="first-seen is stamped after the answer",
    ),
    Bug(
        name="expiry without the member's row",
        focus=("pause", "cut", "slow store"),
        rule="expiry checks the counter in its own transaction",
    ),
    Bug(
        name="expiry without the counter",
        focus=("pause", "cut", "slow store"),
        rule="expiry checks the counter",
        change=mutations.expire_unseen,
    ),
    Bug(
        name="outdated heartbeats count",
        focus=("duplicate",),
        rule="the hub ignores one not newer",
        change=mutations.accept_outdated,
    ),
    Bug(
        name="answers of older heartbeats",
        focus=("cut", "late", "drop"),
        rule="the consumer drops every answer but that to its last",
    ),
    Bug(
        name="a look renews the deadline",
        focus=("pause", "late", "lose answer"),
        rule="waiting for changes is another call and renews nothing",
    ),
    Bug(
        name="older looks count",
        focus=("newcomer", "duplicate", "stop"),
        rule="a look counts if it is newer than what is known",
        change=mutations.older_looks_count,
    ),
    Bug(
        name="inherits at once",
        focus=("twin", "crash"),
        rule="a newer incarnation gets shards like anyone",
        change=mutations.inherit_at_once,
    ),
    Bug(
        name="a forked child goes on",
        focus=("fork", "newcomer"),
        rule="an incarnation is void in a forked child",
    ),
    Bug(
        name="joins after leaving",
        focus=("newcomer", "duplicate", "stop"),
        rule="an incarnation is never reused",
        change=mutations.join_after_leave,
    ),
    Bug(name="barred ones join again", focus=("twin",), rule="NameTaken: it does not rejoin"),
    Bug(
        name="expired ones take names",
        focus=("twin", "pause", "crash"),
        rule="the newer bars the older",
        change=mutations.join_again_bars,
    ),
    Bug(
        name="absence is a release", focus=("newcomer", "stop", "late", "fail"), rule="absence is no release"
    ),
    Bug(
        name="any epoch releases",
        focus=("newcomer", "duplicate"),
        rule="a release names (shard, epoch)",
        change=mutations.any_epoch_releases,
    ),
    Bug(
        name="release before the checkpoint",
        focus=("newcomer", "stop"),
        rule="hand-over is drain, save, release",
    ),
    Bug(
        name="a repeated release forgets the checkpoint",
        focus=("newcomer", "stop", "fail"),
        rule="a release carries the final checkpoint",
    ),
    Bug(
        name="acts after its release", focus=("newcomer", "stop"), rule="who has sent a release acts no more"
    ),
    Bug(
        name="what was fetched outlives its epoch",
        focus=("pause", "newcomer"),
        rule="whatever was fetched goes with (shard, epoch)",
    ),
    Bug(
        name="plain hand-over without the checkpoint",
        focus=("newcomer", "stop"),
        rule="a release carries the final checkpoint",
        change=mutations.hands_over_unsaved,
    ),
    Bug(
        name="plain hand-over under the same epoch",
        focus=("newcomer", "stop"),
        rule="an epoch rises with every change of owner",
        change=mutations.hands_over_the_epoch,
    ),
    Bug(
        name="plain hand-over of any epoch",
        focus=("newcomer", "duplicate", "rewind"),
        rule="a release names (shard, epoch)",
        change=mutations.hands_over_any_epoch,
    ),
    Bug(
        name="plain hand-over of what was reset",
        focus=("rewind", "newcomer"),
        rule="a reset begins anew once its holder has let go",
        change=mutations.hands_over_what_was_reset,
    ),
    Bug(
        name="a living owner is forced",
        focus=("newcomer", "stop"),
        rule="a living owner is never forced",
        change=mutations.force_at_once,
    ),
    Bug(
        name="forced before its deadline",
        focus=("handover", "newcomer", "cut"),
        rule="once the deadline has passed",
        change=mutations.lapse_at_once,
    ),
    Bug(
        name="frozen ones are extended",
        focus=("handover", "newcomer", "slow code"),
        rule="its deadline is no longer extended",
        change=mutations.extend_frozen,
    ),
    Bug(
        name="reset without a new epoch",
        focus=("rewind",),
        rule="a reset raises epochs",
        change=mutations.reset_unfenced,
    ),
    Bug(
        name="reset without letting go",
        focus=("rewind", "reset"),
        rule="once their holders have let go",
        change=mutations.free_on_taking_back,
    ),
    Bug(
        name="reset puts checkpoints back",
        focus=("rewind", "split", "slow store"),
        rule="no checkpoint goes backwards",
        change=mutations.restart_as_loaded,
    ),
    Bug(
        name="children come first",
        focus=("split",),
        rule="a child waits for its ancestors",
        change=mutations.children_first,
    ),
    Bug(
        name="late born at the end",
        focus=("split", "slow store"),
        rule="born later: read from its first offset",
        change=mutations.late_born_at_the_end,
    ),
    Bug(
        name="empty is not over",
        focus=("empty chain",),
        rule="an empty closed shard is over",
        change=mutations.empty_is_not_over,
    ),
    Bug(
        name="counts by the group's",
        focus=("timeout", "cut", "lone watcher"),
        rule="states the timeout it counts by",
        change=mutations.count_by_the_groups,
    ),
    Bug(
        name="shortens late",
        focus=("timeout", "cut", "lose answer", "drop"),
        rule="a shorter one shortens the deadline at once",
        change=mutations.shorten_late,
    ),
    Bug(
        name="never settles",
        focus=("newcomer",),
        rule="the fewest moves; nothing moves any more",
        change=mutations.never_settles,
    ),
    Bug(
        name="unknown rules decide",
        focus=("old server", "newcomer"),
        rule="who does not know the rules does not decide",
        change=mutations.unknown_rules_decide,
    ),
    Bug(
        name="what others left open stays open",
        focus=("old server", "split", "merge"),
        rule="who does not know the rules does not decide; another does",
    ),
    Bug(
        name="steps without compare-and-set",
        focus=("newcomer", "crash"),
        rule="a step is one compare-and-set on the version",
    ),
    Bug(name="forgetting is ignored", focus=("forget", "newcomer"), rule="if the store forgot, epochs jump"),
    Bug(
        name="hubs remember nothing",
        focus=("forget", "newcomer"),
        rule="a revision below one already seen",
    ),
    Bug(
        name="no wait after forgetting",
        focus=("forget", "newcomer", "cut"),
        rule="nothing is granted for one timeout",
        change=mutations.no_wait_after_forgetting,
    ),
)
