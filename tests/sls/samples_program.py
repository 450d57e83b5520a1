"""What the samples beside Aliyun's client do with its consumer library, told in our own words, all at once:
samples_program.py. See `test_upstream` for which is which.
"""
# mypy: ignore-errors
# Its interpreter is another, in which our types are not known, nor its packages in ours.

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from aliyun.log import LogClient, LogItem, PutLogsRequest
from aliyun.log.consumer import (
    ConsumerProcessorAdaptor,
    ConsumerProcessorBase,
    ConsumerWorker,
    CursorPosition,
    LogHubConfig,
)

ENDPOINT, KEY, SECRET = "loghub.test", "id", "secret"
WITHIN_S = 40


def main():
    client = LogClient(ENDPOINT, KEY, SECRET)
    stories = (shared_by_two, copied, several_logstores_with_one_executor)
    for story in stories:
        client.create_project(story.__name__.replace("_", "-"), "")
    with ThreadPoolExecutor(len(stories)) as pool:
        for told in [pool.submit(story, client, story.__name__.replace("_", "-")) for story in stories]:
            told.result()


def shared_by_two(client, project):
    """Two workers of one group; what they were given, the group's state, and the end of the logstore."""
    client.create_logstore(project, "store", 2, 4)
    for i in range(20):
        put(client, project, "store", [("user", f"user-{i}"), ("age", f"age-{i}")])
    seen, lock = [], threading.Lock()

    class Gathering(ConsumerProcessorBase):
        def process(self, log_groups, check_point_tracker):
            with lock:
                seen.extend(fields(log) for group in log_groups.LogGroups for log in group.Logs)
            self.save_checkpoint(check_point_tracker)

    workers = [
        ConsumerWorker(Gathering, option(project, "store", name, cursor_position=CursorPosition.BEGIN_CURSOR))
        for name in ("a", "b")
    ]
    for worker in workers:
        worker.start()
    until(lambda: len(seen) >= 20)
    (group,) = client.list_consumer_group(project, "store").get_consumer_groups()
    assert (group.get_consumer_group_name(), group.is_in_order()) == ("group", False)
    client.get_check_point_fixed(project, "store", "group")
    for worker in workers:
        worker.shutdown()
    for worker in workers:
        worker.join()
    client.delete_logstore(project, "store")
    assert sorted(log["user"] for log in seen) == sorted(f"user-{i}" for i in range(20))
    assert all(log["age"] == log["user"].replace("user", "age") for log in seen)


def copied(client, project):
    """A worker that puts every group, as it is but for its topic, into another logstore."""
    for logstore in ("from", "to"):
        client.create_logstore(project, logstore, 2, 1)
    for i in range(3):
        put(client, project, "from", [("n", str(i)), ("组", "值")], topic=f"topic-{i}")

    def copy(shard, log_groups):
        for group in log_groups.LogGroups:
            group.Topic += "-copied"
            client.put_log_raw(project, "to", group)

    worker = ConsumerWorker(ConsumerProcessorAdaptor, option(project, "from", "c"), args=(copy,))
    worker.start()
    until(lambda: sum(len(group.Logs) for group in pulled(client, project, "to")) == 3)
    worker.shutdown()
    worker.join()
    groups = pulled(client, project, "to")
    assert [group.Topic for group in groups] == [f"topic-{i}-copied" for i in range(3)]
    assert [[fields(log) for log in group.Logs] for group in groups] == [
        [{"n": str(i), "组": "值"}] for i in range(3)
    ]


def several_logstores_with_one_executor(client, project):
    """Workers of several logstores share their threads, and look for what matches."""
    found, executor = set(), ThreadPoolExecutor(2)

    class Watching(ConsumerProcessorBase):
        def __init__(self, logstore):
            super().__init__()
            self.logstore = logstore

        def process(self, log_groups, check_point_tracker):
            for group in log_groups.LogGroups:
                for log in group.Logs:
                    if re.fullmatch(r"5\d{2}", fields(log)["status"]):
                        found.add((self.logstore, fields(log)["n"]))
            self.save_checkpoint(check_point_tracker)

    workers = []
    for logstore in ("one", "two"):
        client.create_logstore(project, logstore, 2, 2)
        for n, status in enumerate(("200", "503", "404", "500")):
            put(client, project, logstore, [("status", status), ("n", str(n))])
        settings = option(project, logstore, "w", shared_executor=executor)
        workers.append(ConsumerWorker(Watching, settings, args=(logstore,)))
        workers[-1].start()
    until(lambda: len(found) == 4)
    for worker in workers:
        worker.shutdown()
    for worker in workers:
        worker.join()
    executor.shutdown()
    assert found == {(logstore, n) for logstore in ("one", "two") for n in ("1", "3")}


def option(project, logstore, name, **more):
    settings = {"cursor_position": CursorPosition.SPECIAL_TIMER_CURSOR, "cursor_start_time": "begin", **more}
    return LogHubConfig(
        ENDPOINT,
        KEY,
        SECRET,
        project,
        logstore,
        "group",
        name,
        heartbeat_interval=1,
        data_fetch_interval=0.2,
        **settings,
    )


def put(client, project, logstore, contents, topic=""):
    client.put_logs(
        PutLogsRequest(project, logstore, topic, "", [LogItem(int(time.time()), contents=contents)])
    )


def pulled(client, project, logstore):
    cursor = client.get_begin_cursor(project, logstore, 0).get_cursor()
    return client.pull_logs(project, logstore, 0, cursor, 1000).get_loggroup_list().LogGroups


def fields(log):
    return {content.Key: content.Value for content in log.Contents}


def until(condition):
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


if __name__ == "__main__":
    main()
