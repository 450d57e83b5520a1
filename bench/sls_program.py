"""Puts logs and pulls them back with Aliyun's own client: sls_program.py LOGS AT_ONCE. Says how long it took.

Run by the interpreter that has the client.
"""
# mypy: ignore-errors
# Its interpreter is another, in which our types are not known, nor its packages in ours.

import sys
import time

from aliyun.log import LogClient, LogItem, PutLogsRequest

P, S = "proj", "store"


def main(logs, at_once):
    client = LogClient("loghub.test", "id", "secret")
    client.create_project(P, "")
    client.create_logstore(P, S, 30, 1)
    items = [
        LogItem(
            1_700_000_000, contents=[("user", f"user-{i}"), ("path", f"/orders/{i}"), ("text", "x" * 100)]
        )
        for i in range(at_once)
    ]
    began = time.perf_counter()
    for _ in range(logs // at_once):
        client.put_logs(PutLogsRequest(P, S, "topic", "source", items))
    put_s = time.perf_counter() - began
    cursor, end = (client.get_cursor(P, S, 0, where).get_cursor() for where in ("begin", "end"))
    began, pulled = time.perf_counter(), 0
    while cursor != end:
        answer = client.pull_logs(P, S, 0, cursor, 100)
        pulled += sum(len(group.Logs) for group in answer.get_loggroup_list().LogGroups)
        cursor = answer.get_next_cursor()
    pull_s = time.perf_counter() - began
    assert pulled == logs // at_once * at_once, pulled
    print(put_s, pull_s)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
