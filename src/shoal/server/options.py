"""The settings of a server, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What a server allows."""

    host: str = "127.0.0.1"
    port: int = 7400
    body_bytes_max: int = 32_000_000
    """One request. A producer's round is at most 20 MB before it is compressed."""
    bodies_bytes_max: int = 256_000_000
    """All requests that are being received or worked on: what strangers can make a server hold."""
    answers_bytes_max: int = 512_000_000
    """All answers that clients have not taken yet: with more than this, no further records are read."""
    connections_max: int = 4_000
    """Each costs a descriptor and what it has sent and not yet been answered."""
    waiting_max: int = 2_000
    """Requests that wait for something to happen. They take no thread."""
    requests_per_s_max: int = 10_000
    """Of one client: of one user, or, where none is defined, from one address. More than a client of ours
    makes, and less than keeps everyone else from being served."""
    wait_s_max: float = 30.0
    """A wait ends after so long, and the client asks again: proxies close connections on which nothing
    moves."""
    head_s: float = 10.0
    """A client has so long to send the head of a request,"""
    body_s: float = 30.0
    """and so long to send its body: from the first byte to the last,"""
    body_bytes_per_s_min: int = 250_000
    """and as much longer as what has come takes at this rate. A body that trickles is not held for ever."""
    send_s: float = 60.0
    """An answer that a client does not take for so long ends its connection."""
    keep_alive_s: float = 75.0
    """A connection at rest. Longer than clients keep one, so that it is they who end it."""
    stop_s: float = 20.0
    """What is in flight may take so long when the server is told to stop; longer than a store's lock is
    waited for."""
    threads: int = 32
    """Calls that are worked on at once: several for each core, since most of the time they wait for the
    disk."""
    open_metrics: bool = False
    """Show the lag of groups to whoever asks, also where users are defined: it names streams and groups."""
    certificate: Path | None = None
    """With it, and its `key`, the server speaks TLS."""
    key: Path | None = None

    traces: str | None = None
    """A collector of OpenTelemetry's, to which a span of each request is sent (OTLP over HTTP)."""
    sls_hosts: tuple[str, ...] = ()
    """The names by which Aliyun's clients reach it: what stands before one of them is a project."""

    def __post_init__(self) -> None:
        if not is_whole(self.port) or not 0 <= self.port < 1 << 16:
            raise InvalidInput("port", self.port, "a number from 0 to 65535; 0 takes one that is free")
        for field in (
            "body_bytes_max",
            "bodies_bytes_max",
            "answers_bytes_max",
            "connections_max",
            "waiting_max",
            "threads",
            "requests_per_s_max",
            "body_bytes_per_s_min",
        ):
            if not is_whole(value := getattr(self, field)) or value < 1:
                raise InvalidInput(field, value, "a whole number from 1 on")
        for field in ("wait_s_max", "head_s", "body_s", "send_s", "keep_alive_s", "stop_s"):
            if not is_number(value := getattr(self, field)) or not 0 < value < 86_400:
                raise InvalidInput(field, value, "seconds, more than 0 and less than a day")
        if self.traces is not None and not self.traces.startswith(("http://", "https://")):
            raise InvalidInput("traces", self.traces, "a URL, such as http://127.0.0.1:4318/v1/traces")
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput(
                "certificate", str(self.certificate), "give a certificate and its key, or neither"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # A name: whoever answers for it says where it leads.
            return False
