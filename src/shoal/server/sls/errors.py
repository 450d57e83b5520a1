"""The one table from our errors to Aliyun's statuses and codes. A test sees that no leaf of the tree is
missing.

Clients repeat anything from 500 on ten times, a second apart, and never a 4xx: so what is certain to happen
again is a 4xx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.core import errors
from shoal.core.errors import RateExceeded, ShoalError

Code = tuple[int, str]


class SlsError(Exception):
    """An answer that is an error, by Aliyun's own code; and `why`, an error of ours that is counted."""

    def __init__(self, status: int, code: str, text: str, why: ShoalError | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.text, self.why = status, code, text, why


_BAD: Final = (400, "ParameterInvalid")
_BROKEN: Final = (500, "InternalServerError")
_BUSY: Final = (503, "ServerBusy")
_NOT_HELD: Final = (400, "ConsumerNotMatch")
_NOT_ALLOWED: Final = (401, "Unauthorized")
"""Aliyun says so both of who is not known and of what is not allowed. Not 403: that is how it says that a
client is too fast."""

TABLE: Final[Mapping[type[ShoalError], Code]] = {
    errors.InvalidName: _BAD,
    errors.InvalidUrl: _BAD,
    errors.InvalidKey: _BAD,
    errors.InvalidTimestamp: _BAD,
    errors.EmptyBatch: _BAD,
    errors.SchemaMismatch: (400, "PostBodyInvalid"),
    errors.ShardChangeRefused: _BAD,
    errors.WrongThread: _BAD,
    errors.CheckpointMisuse: _BAD,
    errors.OtherLeaseStore: _BAD,
    errors.CheckpointBackwards: (400, "InvalidShardCheckPoint"),
    errors.WrongDelivery: _BAD,
    errors.TooLarge: (400, "InvalidLogSize"),
    errors.MissingDriver: _BROKEN,
    errors.MissingPackage: _BROKEN,
    errors.UnknownProject: (404, "ProjectNotExist"),
    errors.UnknownStream: (404, "LogStoreNotExist"),
    errors.StreamReplaced: (404, "LogStoreNotExist"),
    errors.UnknownShard: (404, "ShardNotExist"),
    errors.UnknownDeadLetter: _BAD,
    errors.UnknownGroup: (404, "ConsumerGroupNotExist"),
    errors.UnknownConsumer: (404, "ConsumerNotExist"),
    errors.UnknownPosition: _BAD,
    errors.StreamExists: (400, "LogStoreAlreadyExist"),
    errors.ProjectNotEmpty: (400, "ProjectNotEmpty"),
    errors.ShardClosed: (400, "ShardNotExist"),
    errors.OffsetExpired: (400, "InvalidCursor"),
    errors.OffsetOutOfRange: (400, "InvalidCursor"),
    errors.ProducerFenced: _BAD,
    errors.OutOfSequence: _BAD,
    errors.BufferFull: _BUSY,
    errors.DeliveryTimeout: _BUSY,
    errors.ProducerClosed: _BUSY,
    errors.TransactionEnded: _BAD,
    errors.GroupExists: (400, "ConsumerGroupAlreadyExist"),
    errors.TooManyGroups: (400, "ConsumerGroupQuotaExceed"),
    errors.GroupInUse: _BAD,
    errors.NameTaken: _NOT_HELD,
    errors.MembershipFailed: _BROKEN,
    errors.HeartbeatOutdated: _BUSY,
    errors.NotOwner: _NOT_HELD,
    errors.Fenced: _NOT_HELD,
    errors.LeaseLost: _NOT_HELD,
    errors.DrainFailed: _BAD,
    errors.DrainCutShort: _BAD,
    errors.NotRepeated: _BAD,
    errors.StillUnread: _BAD,
    errors.ProcessorFailed: _BROKEN,
    errors.ConsumerBusy: _BAD,
    errors.ConsumerClosed: _BAD,
    errors.PollTooLate: _BAD,
    errors.DrainTimeout: _BAD,
    errors.DrainFailed: _BAD,
    errors.DrainCutShort: _BAD,
    errors.NotRepeated: _BAD,
    errors.StillUnread: _BAD,
    errors.WokenUp: _BAD,
    errors.DeserializationFailed: _BAD,
    errors.NeverReceived: _BAD,
    errors.AlreadySettled: _BAD,
    errors.HoldExpired: _BAD,
    errors.HeldByAnother: _BAD,
    errors.TooManyPositions: _BAD,
    errors.PositionMoved: _BAD,
    errors.StrategyRefused: _BAD,
    errors.StoreUnavailable: _BUSY,
    errors.StoreBusy: _BUSY,
    errors.StoreFull: (503, "WriteQuotaExceed"),
    errors.StoreReadOnly: _BROKEN,
    errors.StoreCorrupt: _BROKEN,
    errors.NotAShoalStore: _BROKEN,
    errors.StoreTooNew: _BROKEN,
    errors.StoreNotDurable: _BROKEN,
    errors.StoreRefused: _BROKEN,
    errors.StoreFailure: _BROKEN,
    errors.HubClosed: _BUSY,
    errors.NotSignedIn: _NOT_ALLOWED,
    errors.RateExceeded: _BUSY,
    errors.ClockSkewed: (400, "RequestTimeExpired"),
    errors.ReplayedRequest: _NOT_ALLOWED,
    errors.SignedForAnother: _NOT_ALLOWED,
    errors.AccessDenied: _NOT_ALLOWED,
    errors.UnknownUser: _BAD,
    errors.UnknownAccessKey: _BAD,
    errors.UnknownPolicy: _BAD,
    errors.UserExists: _BAD,
    errors.PolicyExists: _BAD,
    errors.PolicyInUse: _BAD,
}


def too_fast(call: str, error: RateExceeded) -> SlsError | RateExceeded:
    """A client that asks for more than it may, as Aliyun tells it. Who reads pauses for five seconds, who
    writes hears of it at once: to repeat it ten times is the last thing wanted. Any other call is repeated
    (`_BUSY`): a checkpoint that is refused with a 4xx ends Python's worker for good, while its heartbeats
    go on."""
    code = _TOO_FAST.get(call)
    return error if code is None else SlsError(403, code, str(error), error)


_TOO_FAST: Final = {"put": "WriteQuotaExceed", "read_shard": "ReadQuotaExceed"}


def code_of(error: ShoalError) -> Code:
    """Of its class; of one that others derive from, that of bad input, or of a fault of ours."""
    found = TABLE.get(type(error))
    if found is not None:
        return found
    return _BAD if isinstance(error, errors.InvalidInput) else _BROKEN
