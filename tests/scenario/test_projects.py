"""Projects come and go while streams are made in them: a stream is never without its project."""

import threading
from contextlib import suppress

import shoal
from shoal.core.errors import ProjectNotEmpty, UnknownProject


def test_a_project_that_is_deleted_while_it_gets_a_stream_is_there_or_gone_with_it(store_url: str) -> None:
    with shoal.connect(store_url) as one, shoal.connect(store_url) as other:
        for round_ in range(15):
            project = f"p{round_}"
            one.create_stream(f"{project}/old", shards=1)
            one.delete_stream(f"{project}/old")
            starting = threading.Barrier(2)

            def delete(project: str = project, starting: threading.Barrier = starting) -> None:
                starting.wait(10)
                with suppress(ProjectNotEmpty, UnknownProject):
                    other.delete_project(project)

            thread = threading.Thread(target=delete)
            thread.start()
            starting.wait(10)
            one.create_stream(f"{project}/new", shards=1)
            thread.join(30)
            assert project in one.list_projects()
            assert [stream.name for stream in one.list_streams(project)] == ["new"]
