"""A shim that answers from a list of ids and logits, and can be told to be wrong in one way.

Of several sequences the list has a token of each, step by step.

usage: shim.py ANSWERS.json FAULT
"""

import array
import json
import sys
import time

answers, fault = json.load(open(sys.argv[1])), sys.argv[2]
ids, logits, at, sequences = answers["ids"], answers["logits"], 0, 1
if fault == "wrong-id":
    ids[3] = (ids[3] + 1) % answers["vocab"]
if fault == "wrong-logit":
    logits[2] += 5.0
if fault == "no-such-id":
    ids[1] = answers["vocab"]
if fault == "not-a-number":
    logits[4] = float("nan")


def say(**answer):
    print(json.dumps(answer), flush=True)


def load(ask):
    global sequences
    sequences = ask["sequences"]
    if fault == "refuses":
        return say(ok=False, why="this model is not for me")
    declared = {"weight_bits": 32.0, "head_bits": 32.0, "activation_bits": 32, "kv": "f32", "sums": "f32"}
    say(
        ok=True,
        name="list",
        version="1",
        streamed_bytes=None,
        vocab=answers["vocab"],
        logits=None if fault == "promises-nothing" else fault != "silent",
        proof=["packed kernels: none"],
        settings={"threads": ask["threads"]},
        **{"class": None if fault == "undeclared" else declared},
    )


def prefill(ask):
    global at
    at = sequences
    given = None if fault == "silent" else logits[:at]
    if "prompts" in ask:
        return say(ok=True, setup_ns=1, ns=1000, ids=ids[:at], logits=given)
    say(ok=True, setup_ns=1, ns=1000, id=ids[0], logit=given and given[0])


def decode(ask):
    global at
    if fault == "dies":
        print("the reason of its death", file=sys.stderr, flush=True)
        sys.exit(7)
    if fault == "hangs":
        time.sleep(600)
    if fault == "chats":
        return print("now decoding", flush=True)
    count = ask["tokens"] - (fault == "short")
    end = at + count * sequences
    given = None if fault == "silent" else logits[at:end]
    if fault in ("null-logit", "promises-nothing"):
        given[-1] = None
    say(ok=True, ids=ids[at:end], logits=given, ns=[500] * count)
    at = end


def score(ask):
    rows = array.array("f", answers["rows"])
    with open(ask["output"], "wb") as file:
        (rows[:-1] if fault == "short" else rows).tofile(file)
    say(ok=True, rows=len(ask["ids"]), vocab=answers["vocab"])


operations = {
    "load": load,
    "prefill": prefill,
    "decode": decode,
    "score": score,
    "finish": lambda _: say(ok=True, release_ns=2, cpu_ns=None, rss_bytes=4096),
    "rest": lambda _: say(ok=True),
}
print("started", file=sys.stderr, flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "quit":
        break
    operations[ask["op"]](ask)
