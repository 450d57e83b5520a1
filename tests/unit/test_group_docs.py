"""The machine in the docs is the machine in the code."""

from pathlib import Path

from shoal.core.claims import diagram

DOCS = Path(__file__).parent.parent.parent / "docs" / "groups.md"


def test_the_diagram_in_the_docs_is_printed_from_the_code() -> None:
    _, _, rest = DOCS.read_text().partition("<!-- machine -->\n")
    printed, _, _ = rest.partition("<!-- /machine -->")
    assert printed == diagram()
