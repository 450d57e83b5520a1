"""Who makes a request of this dialect: the user whose key signed it, as for the native one. What a call then
needs is in `needs`.

The signature is all that there is: no nonce, so that a request can be repeated within its time; and version 1
says nothing of the host, and so of the project. Who may do what in that project is asked all the same.
"""

from __future__ import annotations

from shoal.core.errors import NotSignedIn
from shoal.core.limits import SLS_SIGNED_MS
from shoal.core.replay import check_date
from shoal.server.access import Access
from shoal.server.keys import ANYONE, Caller, Run
from shoal.server.sls.errors import SlsError
from shoal.server.sls.signature import Claimed, Signed, claimed, is_right, signed_at_ms


async def admitted(
    request: Signed, client: str, access: Access, run: Run, now_ms: int
) -> tuple[Caller, Claimed | None]:
    """Who makes a request, by its head and its address, and what its signature says, which its body has to
    agree with; or an error. With no user defined, signatures are not looked at."""
    if not await access.is_on(run):
        return ANYONE, None
    claim = claimed(request.headers.get("authorization", ""))
    if claim is None:
        raise NotSignedIn("users are defined, so requests have to be signed: no key, or an unknown form")
    known = await access.known(claim.key_id, client, run)
    if known is None:
        raise NotSignedIn("the key is not known or not enabled")
    if not is_right(claim, request, known.secret):
        raise unsigned(401, "SignatureNotMatch", "the signature is not the one that this key's secret gives")
    at_ms = signed_at_ms(claim, request.headers)
    if at_ms is None:
        raise unsigned(400, "InvalidRequestTime", "a signed request says when it was signed")
    check_date(at_ms, now_ms, SLS_SIGNED_MS)
    return known.caller, claim


def unsigned(status: int, code: str, reason: str) -> SlsError:
    """A signature that is not right, by Aliyun's code; counted as ours."""
    error = NotSignedIn(reason)
    return SlsError(status, code, str(error), error)
