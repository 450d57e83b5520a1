"""Rows of the group tables as values, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.checkpoint import checkpoint_of, marks_text
from shoal.core.group import (
    Claim,
    Coordination,
    Delivery,
    Group,
    GroupSettings,
    Member,
    MemberStatus,
    ShardState,
)
from shoal.core.model import ShardId
from shoal.core.retry import Policy


def group_of(row: Any, members: Mapping[str, Member] | None = None, claims: Sequence[Claim] = ()) -> Group:
    """A row of the group table as a value."""
    return Group(
        id=row.id,
        stream_id=row.stream_id,
        name=row.name,
        version=row.version,
        epoch=row.epoch,
        settings=GroupSettings(
            in_order=bool(row.in_order),
            timeout_ms=row.timeout_ms,
            handover_timeout_ms=row.handover_timeout_ms,
            coordination=Coordination(row.coordination),
            delivery=Delivery(row.delivery),
            strategy=row.strategy,
            lease_table=row.lease_table,
            lease_store=row.lease_store,
            failure=None if row.failure is None else Policy(row.failure),
            visibility_ms=row.visibility_ms,
            max_attempts=row.max_attempts,
            key_ordered=bool(row.key_ordered),
            unused_ms=row.unused_ms,
            rules=row.rules,
        ),
        members=members or {},
        claims=claims,
        distrust_ms=row.distrust_ms,
        created_ms=row.created_ms,
    )


def settings_columns(settings: GroupSettings) -> dict[str, Any]:
    return {
        "in_order": int(settings.in_order),
        "timeout_ms": settings.timeout_ms,
        "handover_timeout_ms": settings.handover_timeout_ms,
        "coordination": settings.coordination.value,
        "delivery": settings.delivery.value,
        "strategy": settings.strategy,
        "lease_table": settings.lease_table,
        "lease_store": settings.lease_store,
        "failure": settings.failure,
        "visibility_ms": settings.visibility_ms,
        "max_attempts": settings.max_attempts,
        "key_ordered": int(settings.key_ordered),
        "unused_ms": settings.unused_ms,
        "rules": settings.rules,
    }


def member_of(row: Any) -> Member:
    """A row of the member table as a value."""
    return Member(
        incarnation=row.incarnation,
        name=row.name,
        status=MemberStatus(row.status),
        beat=row.beat,
        timeout_ms=row.timeout_ms,
        interval_ms=row.interval_ms,
        stood_ms=row.stood_ms,
        assigned=row.assigned,
        held=row.held,
    )


def member_row(group_id: int, member: Member) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "incarnation": member.incarnation,
        "name": member.name,
        "status": member.status.value,
        "beat": member.beat,
        "timeout_ms": member.timeout_ms,
        "interval_ms": member.interval_ms,
        "stood_ms": member.stood_ms,
        "assigned": member.assigned,
        "held": member.held,
    }


def claim_of(row: Any) -> Claim:
    """A row of the claim table as a value."""
    return Claim(
        shard=ShardId(row.shard),
        state=ShardState(row.state),
        checkpoint=checkpoint_of(row.checkpoint, row.marks),
        epoch=row.epoch,
        owner=row.owner,
        owner_epoch=row.owner_epoch,
        next=row.next_owner,
        is_bound=bool(row.is_bound),
        is_told=row.saved_ms is not None,
        restart=row.restart,
        handover_ms=row.handover_ms,
        lapse_ms=row.lapse_ms,
    )


def new_claim_row(group_id: int, claim: Claim, now_ms: int) -> dict[str, Any]:
    """A row that is not there yet."""
    saved_ms = now_ms if claim.is_told else None
    return {**claim_row(group_id, claim), "since_ms": now_ms, "saved_ms": saved_ms}


def claim_row(group_id: int, claim: Claim) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "shard": claim.shard,
        "state": claim.state.value,
        "checkpoint": int(claim.checkpoint),
        "marks": marks_text(claim.checkpoint),
        "epoch": claim.epoch,
        "owner": claim.owner,
        "owner_epoch": claim.owner_epoch,
        "next_owner": claim.next,
        "is_bound": int(claim.is_bound),
        "restart": claim.restart,
        "handover_ms": claim.handover_ms,
        "lapse_ms": claim.lapse_ms,
    }
