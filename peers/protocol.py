"""The shim protocol: one JSON object a line, requests on standard input, answers on standard output.

An engine is an object with load, prefill, decode, finish and rest; each takes the request as a dict and returns its
answer as one. When standard input ends the process ends, in the middle of a call too.
"""

import json
import os
import queue
import sys
import threading
import time


def serve(engine):
    """Answers requests until `quit`. What the engine itself prints goes to standard error, which is the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines = queue.Queue()

    def read():
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            ask = json.loads(lines.get())
            if ask["op"] == "quit":
                os._exit(0)
            if ask["op"] not in ("load", "prefill", "decode", "finish", "rest"):
                raise ValueError(f"op: no such operation: {ask['op']}")
            if ask["op"] == "load" and ask.get("sequences", 1) != 1:
                raise ValueError(f"sequences: expected 1, which this engine's loop runs, found {ask['sequences']}")
            # JSON has no NaN: a logit that is none is sent as null, which is judged as a wrong one.
            answer = json.dumps({"ok": True, **finite(getattr(engine, ask["op"])(ask))}, allow_nan=False)
        except Exception as e:
            answer = json.dumps({"ok": False, "why": f"{type(e).__name__}: {e}"})
        print(answer, file=answers, flush=True)


def finite(value):
    """The same value with null for each number that JSON does not have."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value


def resident_bytes():
    """Resident memory of this process; none where the system does not say."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return None


now_ns = time.perf_counter_ns
cpu_ns = time.thread_time_ns


class TokenByToken:
    """The greedy loop of an engine that gives one logits row at a time: `begin` empties the cache, `run` appends ids to it,
    keeps the arg max after them in `last` and returns its logit.
    """

    def prefill(self, ask):
        self.begin()
        if ask["prefix"]:
            self.run(ask["prefix"])
        self.cpu = cpu_ns()
        start = now_ns()
        logit = self.run(ask["prompt"])
        return {"setup_ns": 0, "ns": now_ns() - start, "id": self.last, "logit": logit}

    def decode(self, ask):
        ids, logits, ns = [], [], []
        before = now_ns()
        for _ in range(ask["tokens"]):
            logits.append(self.run([self.last]))
            ids.append(self.last)
            now = now_ns()
            ns.append(now - before)
            before = now
        return {"ids": ids, "logits": logits, "ns": ns}
