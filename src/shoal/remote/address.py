"""What the URL of a server looks like."""

from __future__ import annotations


def is_remote(url: object) -> bool:
    """Whether this names a server."""
    return isinstance(url, str) and url.startswith(("http://", "https://"))
