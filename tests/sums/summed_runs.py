"""Runs of five clients in which the server learns sums."""

import json

from flwr.app import Message

from fedhet.testing import small

N = 5


def config(tmp_path, mode="masked", **changes):
    """Five clients that share headers; four of them are a sum."""
    values = {"method": "lg_fedavg", "clients": N, "max_images": 100, "secure_sum": mode}
    values |= {"image_size": 16}
    values |= {"sum_threshold": 0 if "fraction" in changes else 4}
    return small(tmp_path, **(values | changes))


def sha(folder) -> str:
    return json.loads(folder.summary.read_text())["run_sha256"]


def asked(message: Message) -> tuple[str, int, int]:
    """Kind, round and attempt of a request; attempt 0 where it is of no sum."""
    records = message.content.config_records
    attempt = records["sum"].get("attempt", 0) if "sum" in records else 0
    return message.metadata.message_type, records["config"]["round"], attempt
