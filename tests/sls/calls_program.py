"""Every call of LogHub, made with Aliyun's own client. Run by its own interpreter: calls_program.py NAME ...

Each story has a project of its own. With `all`, all of `STORIES` are told, and none of `METHODS` is left out.
SHOAL_URLS, if given, are servers of one store: each call goes to another than the one before.
"""
# mypy: ignore-errors
# Its interpreter is another, in which our types are not known, nor its packages in ours.

import os
import sys
import time
from itertools import cycle

from aliyun.log import (
    GetLogsRequest,
    ListLogstoresRequest,
    LogClient,
    LogException,
    LogGroup,
    LogItem,
    PutLogsRequest,
)

P, S = "proj", "store"
URLS = cycle(os.environ.get("SHOAL_URLS", os.environ["http_proxy"]).split(","))
CALLED = set()
METHODS = set()
for line in """
    create_project get_project update_project delete_project list_project
    create_logstore get_logstore update_logstore delete_logstore list_logstore list_logstores
    list_shards split_shard merge_shard delete_shard arrange_shard
    put_logs put_log_raw get_cursor get_begin_cursor get_end_cursor get_cursor_time get_previous_cursor_time
    pull_logs pull_log
    create_consumer_group update_consumer_group delete_consumer_group list_consumer_group
    heart_beat update_check_point get_check_point get_check_point_fixed get_logs
""".splitlines():
    METHODS.update(line.split())
STORIES = ("projects", "logstores", "logs", "raw", "zstd", "shards", "groups")


class Client:
    """The client, which notes what it is asked for, and turns from server to server."""

    def __init__(self, **settings):
        self._client = LogClient("loghub.test", "id", "secret", **settings)

    def __getattr__(self, name):
        CALLED.add(name)
        os.environ["http_proxy"] = next(URLS)  # It is looked up for each request.
        return getattr(self._client, name)


def client(**settings):
    return Client(**settings)


def refused(code, function, *arguments, **named):
    """The call is answered with this error."""
    found = None
    try:
        function(*arguments, **named)
    except LogException as error:
        found = error.get_error_code()
    assert found == code, found


def put(c, texts, topic="t", source="s", **named):
    items = [
        LogItem(1700000000 + i, contents=[("n", text), ("n", "again"), ("组", "值")])
        for i, text in enumerate(texts)
    ]
    c.put_logs(PutLogsRequest(P, S, topic, source, items, **named))


def projects(c):
    refused("ProjectNotExist", c.get_project, P)
    c.create_project(P, "about")
    refused("ProjectAlreadyExist", c.create_project, P, "about")
    assert c.get_project(P).get_projectname() == P
    c.update_project(P, "other")
    assert P in [p["projectName"] for p in c.list_project().get_projects()]
    c.delete_project(P)
    refused("ProjectNotExist", c.get_project, P)


def logstores(c):
    refused("ProjectNotExist", c.create_logstore, P, S, 7, 2)
    c.create_project(P, "")
    c.create_logstore(P, S, 7, 2)
    refused("LogStoreAlreadyExist", c.create_logstore, P, S, 7, 2)
    found = c.get_logstore(P, S)
    assert (found.get_ttl(), found.get_shard_count()) == (7, 2)
    c.update_logstore(P, S, 9)
    assert c.get_logstore(P, S).get_ttl() == 9
    assert c.list_logstore(P).get_logstores() == [S]
    assert c.list_logstores(ListLogstoresRequest(P)).get_logstores() == [S]
    refused("LogStoreNotExist", c.get_logstore, P, "none")
    refused("ProjectNotEmpty", c.delete_project, P)
    c.delete_logstore(P, S)
    refused("LogStoreNotExist", c.get_logstore, P, S)


def made(c, shards=2):
    c.create_project(P, "")
    c.create_logstore(P, S, 30, shards)


def logs(c):
    made(c, 1)
    before = int(time.time())
    put(c, ["a", "b"])
    put(c, ["c"], topic="u", compress=False)
    put(c, ["d"], logtags=[("host", "x")])
    put(c, ["e"], hashKey="f" * 32)
    for named in ({}, {"compress": False}):
        cursor = c.get_begin_cursor(P, S, 0).get_cursor()
        answer = c.pull_logs(P, S, 0, cursor, 1000, **named)
        assert answer.get_loggroup_count() == 4, answer.get_loggroup_count()
        groups = answer.get_loggroup_list()
        assert [len(g.Logs) for g in groups.LogGroups] == [2, 1, 1, 1]
        first = groups.LogGroups[0]
        assert [(p.Key, p.Value) for p in first.Logs[0].Contents] == [
            ("n", "a"),
            ("n", "again"),
            ("组", "值"),
        ]
        assert (first.Topic, first.Source, groups.LogGroups[1].Topic) == ("t", "s", "u")
        assert [(t.Key, t.Value) for t in groups.LogGroups[2].LogTags] == [("host", "x")]
        assert first.Logs[1].Time == 1700000001
        end = c.get_end_cursor(P, S, 0).get_cursor()
        assert answer.get_next_cursor() == end
    one = c.pull_logs(P, S, 0, cursor, 1)
    assert one.get_loggroup_count() == 1
    bounded = c.pull_logs(P, S, 0, cursor, 1000, end_cursor=one.get_next_cursor())
    assert bounded.get_next_cursor() == one.get_next_cursor()
    assert c.pull_logs(P, S, 0, end, 10).get_loggroup_count() == 0
    assert c.get_cursor(P, S, 0, before - 1).get_cursor() == cursor
    assert c.get_cursor(P, S, 0, before + 1000).get_cursor() == end
    assert before <= c.get_cursor_time(P, S, 0, cursor).get_cursor_time() <= before + 5
    assert c.get_cursor_time(P, S, 0, end).get_cursor_time() >= before
    assert c.get_previous_cursor_time(P, S, 0, end).get_cursor_time() >= before
    assert (
        sum(
            len(g.Logs)
            for a in c.pull_log(P, S, 0, before - 1, before + 1000)
            for g in a.get_loggroup_list().LogGroups
        )
        == 5
    )
    refused("InvalidCursor", c.pull_logs, P, S, 0, "bm9uZQ==", 10)
    refused("ShardNotExist", c.get_begin_cursor, P, S, 7)
    refused("ParameterInvalid", c.get_logs, GetLogsRequest(P, S, 0, 1, query="*"))
    refused("ParameterInvalid", c.pull_logs, P, S, 0, cursor, 10, query="* | where 1=1")


def raw(c):
    """As a relay of groups does, and the one that asks for the shards first."""
    made(c, 1)
    group = LogGroup()
    group.Topic, group.Source = "t", "s"
    log = group.Logs.add()
    log.Time = int(time.time())
    for i in range(10):
        field = log.Contents.add()
        field.Key, field.Value = f"k{i}", b"v%d" % i
    for compress in (True, False, None):
        c.put_log_raw(P, S, group, compress)
        put(c, ["a"], compress=compress)
    shard = c.list_shards(P, S).get_shards_info()[0]["shardID"]
    cursor = c.get_cursor(P, S, shard, "begin").get_cursor()
    for compress in (True, False, None):
        answer = c.pull_logs(P, S, shard, cursor, compress=compress)
        counts = [len(one.Logs) for one in answer.get_loggroup_list().LogGroups]
        assert sum(counts) == 6, counts
        fields = answer.get_loggroup_list().LogGroups[0].Logs[0].Contents
        assert [(f.Key, f.Value) for f in fields] == [(f"k{i}", f"v{i}") for i in range(10)]


def zstd(c):
    made(c, 1)
    put(c, ["a" * 5000], compress_type="zstd")
    answer = c.pull_logs(P, S, 0, c.get_begin_cursor(P, S, 0).get_cursor(), 10, accept_compress_type="zstd")
    assert answer.get_loggroup_count() == 1


def shards(c):
    made(c, 1)
    put(c, ["a"])
    (only,) = c.list_shards(P, S).get_shards_info()
    assert (only["inclusiveBeginKey"], only["exclusiveEndKey"], only["status"]) == (
        "0" * 32,
        "f" * 32,
        "readwrite",
    )
    told = c.split_shard(P, S, 0, "8" + "0" * 31).get_shards_info()
    assert [(s["shardID"], s["status"]) for s in told] == [
        (0, "readonly"),
        (1, "readwrite"),
        (2, "readwrite"),
    ]
    put(c, ["b"], hashKey="9" + "0" * 31)
    assert len(drained_groups(c, 2)) == 1
    assert len(drained_groups(c, 0)) == 1
    told = c.merge_shard(P, S, 1).get_shards_info()
    assert [(s["shardID"], s["status"]) for s in told] == [(3, "readwrite"), (1, "readonly"), (2, "readonly")]
    refused("ParameterInvalid", c.merge_shard, P, S, 3)
    refused("ParameterInvalid", c.delete_shard, P, S, 0)
    c.arrange_shard(P, S, 5)
    assert sum(s["status"] == "readwrite" for s in c.list_shards(P, S).get_shards_info()) == 5


def drained_groups(c, shard):
    return (
        c.pull_logs(P, S, shard, c.get_begin_cursor(P, S, shard).get_cursor(), 1000)
        .get_loggroup_list()
        .LogGroups
    )


def groups(c):
    made(c)
    put(c, ["a"], hashKey="0" * 32)
    c.create_consumer_group(P, S, "g", 10, False)
    refused("ConsumerGroupAlreadyExist", c.create_consumer_group, P, S, "g", 10, False)
    c.update_consumer_group(P, S, "g", 20, True)
    (found,) = c.list_consumer_group(P, S).get_consumer_groups()
    assert (found.get_consumer_group_name(), found.get_timeout(), found.is_in_order()) == ("g", 20, True)
    assert c.heart_beat(P, S, "g", "one", []).get_shards() == [0, 1]
    assert c.heart_beat(P, S, "g", "one", [0, 1]).get_shards() == [0, 1]
    assert c.heart_beat(P, S, "g", "two", []).get_shards() == []
    (kept,) = c.heart_beat(P, S, "g", "one", [0, 1]).get_shards()
    given = 1 - kept
    assert c.heart_beat(P, S, "g", "two", []).get_shards() == []
    c.heart_beat(P, S, "g", "one", [kept])
    assert c.heart_beat(P, S, "g", "two", []).get_shards() == [given]
    (told,) = [x for x in c.get_check_point(P, S, "g").get_consumer_group_check_points() if x["shard"] == 0]
    assert told["checkpoint"] == ""
    end = c.get_end_cursor(P, S, 0).get_cursor()
    holder, other = ("one", "two") if kept == 0 else ("two", "one")
    c.update_check_point(P, S, "g", 0, end, other)  # Passed over: another holds it.
    refused("ConsumerNotMatch", c.update_check_point, P, S, "g", 0, end, other, False)
    refused("ConsumerNotExist", c.update_check_point, P, S, "g", 0, end, "nobody", False)
    assert c.get_check_point(P, S, "g", 0).get_consumer_group_check_points()[0]["checkpoint"] == ""
    c.update_check_point(P, S, "g", 0, end, holder)
    (told,) = c.get_check_point(P, S, "g", 0).get_consumer_group_check_points()
    assert (told["checkpoint"], told["consumer"]) == (end, holder)
    assert told["updateTime"] > 1e15
    c.get_check_point_fixed(P, S, "g")
    refused("InvalidShardCheckPoint", c.update_check_point, P, S, "g", 0, "%%%", holder)
    c.delete_consumer_group(P, S, "g")
    refused("ConsumerGroupNotExist", c.heart_beat, P, S, "g", "one", [])


def signed(c):
    for settings in (
        {},
        {"auth_version": "v4", "region": "cn-test"},
        {"securityToken": "token"},
        {"auth_version": "v4", "region": "cn-test", "securityToken": "token"},
    ):
        mine = client(**settings)
        if not settings:
            made(mine, 1)
        put(mine, ["a 组 +%"])
        mine.create_consumer_group(
            P, S, f"g{len(settings)}{'t' if 'securityToken' in settings else ''}", 10, False
        )
        mine.list_consumer_group(P, S)
        assert drained_groups(mine, 0)
    wrong = LogClient("loghub.test", "id", "guess")
    refused("SignatureNotMatch", wrong.list_logstore, P)
    refused(
        "SignatureNotMatch",
        LogClient("loghub.test", "id", "guess", auth_version="v4", region="x").list_logstore,
        P,
    )
    refused("Unauthorized", LogClient("loghub.test", "other", "secret").list_logstore, P)
    refused("Unauthorized", LogClient("loghub.test", "", "").list_logstore, P)


def reading_alone(c):
    assert len(drained_groups(c, 0)) == 1
    for call in (
        lambda: put(c, ["b"]),
        lambda: put(client(auth_version="v4", region="cn-test"), ["b"]),
        lambda: c.create_consumer_group(P, S, "g", 10, False),
        lambda: c.split_shard(P, S, 0, ""),
        lambda: c.delete_logstore(P, S),
        lambda: c.create_project("other", ""),
        lambda: c.get_begin_cursor(P, "other", 0),
    ):
        refused("Unauthorized", call)
    assert c.list_project().get_projects() == []


if __name__ == "__main__":
    words = sys.argv[1:]
    told = STORIES if words == ["all"] else words
    for story in told:
        if len(told) > 1:
            P = f"proj-{story}"
        globals()[story](client())
    if words == ["all"]:
        assert METHODS <= CALLED, METHODS - CALLED
