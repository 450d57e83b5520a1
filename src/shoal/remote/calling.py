"""A call by its name: parameters as a body, the answer as a value. Everything is taken from the table of
calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shoal.native.calls import CALLS, Call, arguments_to
from shoal.remote.plain_http import Begun
from shoal.remote.transport import PATIENCE_S, Transport
from shoal.wire.frame import divided, holds_label, label_from
from shoal.wire.values import from_json

QUICK_S: Final = 0.5
"""How long calls are repeated whose callers come back by themselves, and have deadlines of their own."""
_QUICK: Final = {
    ("groups", "beat"),
    ("groups", "wait"),
    ("leases", "wait"),
    ("leases", "glance"),
    ("hub", "read"),
}
WAIT_S: Final = 20.0
"""How long a server is asked to wait at a time: shorter than what proxies between call a dead connection."""


class Part:
    """One part of the API."""

    def __init__(self, transport: Transport, part: str) -> None:
        self._transport = transport
        self._part = part

    def ask(self, called: str, /, *, wait_s: float = 0.0, **arguments: object) -> Any:
        """Make the call of this name, and return what it answers."""
        call = CALLS[self._part, called]
        return from_json(call.answer, self._send(call, arguments, wait_s), is_strict=False)

    def ask_for_batches(
        self,
        called: str,
        /,
        *,
        labelled: Callable[[Any], None] | None = None,
        wait_s: float = 0.0,
        **arguments: object,
    ) -> tuple[Any, memoryview]:
        """The same, for a call that is answered with a label and batches. `labelled` is told the label before
        all of the batches have come, if it comes that early; once for every attempt that is answered."""
        call = CALLS[self._part, called]
        early: dict[bytes, Any] = {}

        def begun(first: bytes) -> None:
            if labelled is not None and holds_label(first):
                early.update(read(bytes(divided(first)[0])))

        def read(text: bytes) -> dict[bytes, Any]:
            label = label_from(call.answer, text, is_strict=False)
            if labelled is not None:
                labelled(label)
            return {text: label}

        answer = self._send(call, arguments, wait_s, None if labelled is None else begun)
        label, payloads = divided(answer)
        text = bytes(label)
        if text not in early:  # What began to come may have been another attempt's answer.
            early.update(read(text))
        return early[text], payloads

    def _send(
        self, call: Call, arguments: dict[str, object], wait_s: float, begun: Begun | None = None
    ) -> memoryview:
        return self._transport.call(
            call.path,
            [arguments_to(call, arguments)],
            is_repeatable=call.is_repeatable,
            patience_s=QUICK_S if (call.part, call.name) in _QUICK else PATIENCE_S,
            wait_s=wait_s,
            begun=begun,
        )
