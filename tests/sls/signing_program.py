"""Signatures of Aliyun's own client, in both versions: a line of JSON in for a request, one out with its
headers.
"""
# mypy: ignore-errors
# Its interpreter is another, in which our types are not known, nor its packages in ours.

import json
import sys

from aliyun.log.auth import make_auth
from aliyun.log.credentials import StaticCredentialsProvider

for line in sys.stdin:
    asked = json.loads(line)
    key = StaticCredentialsProvider(asked["key"], asked["secret"], asked["token"])
    headers = asked["headers"]
    auth = make_auth(key, asked["version"], asked["region"])
    auth.sign_request(asked["method"], asked["path"], asked["query"], headers, asked["body"].encode())
    sys.stdout.write(json.dumps(headers) + "\n")
