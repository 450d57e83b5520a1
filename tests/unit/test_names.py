"""Names of streams and projects."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidName
from shoal.core.model import StreamName
from shoal.core.names import checked_name, stream_name

good = st.text("abcXYZ019._-", min_size=1, max_size=128).filter(lambda name: name not in (".", ".."))


@given(good, good)
def test_a_stream_is_named_with_or_without_its_project(project: str, stream: str) -> None:
    assert stream_name(stream) == StreamName("default", stream)
    assert stream_name(f"{project}/{stream}") == StreamName(project, stream)
    assert stream_name(str(StreamName(project, stream))) == StreamName(project, stream)
    assert str(StreamName("default", stream)) == stream


@given(st.text(max_size=10) | st.text("a", min_size=129, max_size=140))
def test_a_name_is_taken_exactly_if_it_obeys_the_rule(name: str) -> None:
    if re.match(r"\A[A-Za-z0-9._-]{1,128}\Z", name) and name not in (".", ".."):
        assert checked_name("stream", name) == name
    else:
        with pytest.raises(InvalidName, match="stream="):
            checked_name("stream", name)


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a/b/c", "a b", "ä", "a\n", ".", "..", "a/..", "../a", 5, None, b"a"]
)
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidName):
        stream_name(name)
