"""The one table from errors to HTTP statuses. A test sees that no leaf of the tree is missing."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from shoal.core import errors
from shoal.core.errors import ShoalError

_BAD, _GONE, _CONFLICT = HTTPStatus.BAD_REQUEST, HTTPStatus.GONE, HTTPStatus.CONFLICT
_NOT_FOUND, _AWAY, _BROKEN = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.INTERNAL_SERVER_ERROR,
)

TABLE: Final[dict[type[ShoalError], HTTPStatus]] = {
    errors.InvalidName: _BAD,
    errors.InvalidUrl: _BAD,
    errors.InvalidKey: _BAD,
    errors.InvalidTimestamp: _BAD,
    errors.EmptyBatch: _BAD,
    errors.SchemaMismatch: _BAD,
    errors.ShardChangeRefused: _BAD,
    errors.WrongThread: _BAD,
    errors.CheckpointMisuse: _BAD,
    errors.OtherLeaseStore: _CONFLICT,
    errors.CheckpointBackwards: _CONFLICT,
    errors.WrongDelivery: _CONFLICT,
    errors.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.MissingDriver: _BROKEN,
    errors.MissingPackage: _BROKEN,
    errors.UnknownProject: _NOT_FOUND,
    errors.UnknownStream: _NOT_FOUND,
    errors.UnknownShard: _NOT_FOUND,
    errors.StreamReplaced: _NOT_FOUND,
    errors.UnknownDeadLetter: _NOT_FOUND,
    errors.UnknownGroup: _NOT_FOUND,
    errors.UnknownConsumer: _NOT_FOUND,
    errors.UnknownPosition: _NOT_FOUND,
    errors.StreamExists: _CONFLICT,
    errors.ProjectNotEmpty: _CONFLICT,
    errors.ShardClosed: _CONFLICT,
    errors.OffsetExpired: _GONE,
    errors.OffsetOutOfRange: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    errors.ProducerFenced: _CONFLICT,
    errors.OutOfSequence: _CONFLICT,
    errors.BufferFull: _AWAY,
    errors.DeliveryTimeout: HTTPStatus.GATEWAY_TIMEOUT,
    errors.ProducerClosed: _CONFLICT,
    errors.TransactionEnded: _CONFLICT,
    errors.GroupExists: _CONFLICT,
    errors.TooManyGroups: _CONFLICT,
    errors.GroupInUse: _CONFLICT,
    errors.NameTaken: _CONFLICT,
    errors.MembershipFailed: _BROKEN,
    errors.HeartbeatOutdated: _CONFLICT,
    errors.NotOwner: _CONFLICT,
    errors.Fenced: _CONFLICT,
    errors.LeaseLost: _CONFLICT,
    errors.DrainFailed: _CONFLICT,
    errors.DrainCutShort: _CONFLICT,
    errors.NotRepeated: _CONFLICT,
    errors.StillUnread: HTTPStatus.GATEWAY_TIMEOUT,
    errors.ProcessorFailed: _BROKEN,
    errors.ConsumerBusy: _CONFLICT,
    errors.ConsumerClosed: _CONFLICT,
    errors.PollTooLate: _CONFLICT,
    errors.DrainTimeout: HTTPStatus.GATEWAY_TIMEOUT,
    errors.DrainFailed: _CONFLICT,
    errors.DrainCutShort: _CONFLICT,
    errors.NotRepeated: _CONFLICT,
    errors.StillUnread: HTTPStatus.GATEWAY_TIMEOUT,
    errors.WokenUp: _CONFLICT,
    errors.DeserializationFailed: _BAD,
    errors.NeverReceived: _CONFLICT,
    errors.AlreadySettled: _CONFLICT,
    errors.HoldExpired: _CONFLICT,
    errors.HeldByAnother: _CONFLICT,
    errors.TooManyPositions: _CONFLICT,
    errors.PositionMoved: _CONFLICT,
    errors.StrategyRefused: _BAD,
    errors.StoreUnavailable: _AWAY,
    errors.StoreBusy: _AWAY,
    errors.StoreFull: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.StoreReadOnly: _BROKEN,
    errors.StoreCorrupt: _BROKEN,
    errors.NotAShoalStore: _BROKEN,
    errors.StoreTooNew: _BROKEN,
    errors.StoreNotDurable: _BROKEN,
    errors.StoreRefused: _BROKEN,
    errors.StoreFailure: _BROKEN,
    errors.HubClosed: _AWAY,
    errors.RateExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.NotSignedIn: HTTPStatus.UNAUTHORIZED,
    errors.ClockSkewed: HTTPStatus.UNAUTHORIZED,
    errors.ReplayedRequest: HTTPStatus.UNAUTHORIZED,
    errors.SignedForAnother: HTTPStatus.UNAUTHORIZED,
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.UnknownUser: _NOT_FOUND,
    errors.UnknownAccessKey: _NOT_FOUND,
    errors.UnknownPolicy: _NOT_FOUND,
    errors.UserExists: _CONFLICT,
    errors.PolicyExists: _CONFLICT,
    errors.PolicyInUse: _CONFLICT,
}


def status_of(error: ShoalError) -> HTTPStatus:
    """Of its class; of one that others derive from, that of bad input, or of a fault of ours."""
    found = TABLE.get(type(error))
    if found is not None:
        return found
    return _BAD if isinstance(error, errors.InvalidInput) else _BROKEN
