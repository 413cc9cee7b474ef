#!/usr/bin/env python3
"""Talks to a running `tare serve` through the `openai` package, as a user's program would.

    python3 -m venv venv && venv/bin/pip install openai
    tare serve -m smollm2-135m --port 8080 &
    venv/bin/python scripts/openai_smoke.py http://127.0.0.1:8080/v1

Each check asserts; the last line says how many passed. Needs nothing but the server: any key is accepted.
"""

import sys

import openai

MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    checks = [whole_equals_stream, usage_at_the_end, logprobs, stop_string, seeds, completion, errors, leaving]
    for check in checks:
        check(client, model)
        print(f"ok  {check.__name__}")
    print(f"{len(checks)} of {len(checks)} checks passed on {model}")


def ask(client, model, **more):
    settings = {"max_tokens": 24, "temperature": 0, **more}
    return client.chat.completions.create(model=model, messages=MESSAGES, **settings)


def text(stream) -> str:
    return "".join(c.choices[0].delta.content or "" for c in stream if c.choices)


def whole_equals_stream(client, model):
    whole = ask(client, model)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert text(ask(client, model, stream=True)) == choice.message.content
    print(f"    {choice.message.content!r}")


def usage_at_the_end(client, model):
    chunks = list(ask(client, model, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0


def logprobs(client, model):
    content = ask(client, model, max_tokens=3, logprobs=True, top_logprobs=5).choices[0].logprobs.content
    for token in content:
        assert len(token.top_logprobs) == 5
        assert token.top_logprobs[0].token == token.token and token.logprob <= 0


def stop_string(client, model):
    full = ask(client, model).choices[0].message.content
    stop = full[len(full) // 2 :][:3]
    answer = ask(client, model, stop=[stop]).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content == full[: full.index(stop)]


def seeds(client, model):
    def drawn(seed):
        return ask(client, model, temperature=1, seed=seed).choices[0].message.content

    assert drawn(1) == drawn(1)


def completion(client, model):
    settings = {"model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**settings)
    assert whole.usage.completion_tokens <= 12
    stream = client.completions.create(stream=True, **settings)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def errors(client, model):
    def refused(kind, param, **more):
        try:
            ask(client, model, **more)
        except kind as e:
            assert e.body["param"] == param, e.body
        else:
            raise AssertionError(f"{param} was not refused")

    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "n", n=2)
    refused(openai.BadRequestError, "colour", extra_body={"colour": "red"})
    try:
        ask(client, "another-model")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found"
    else:
        raise AssertionError("another model was answered")


def leaving(client, model):
    stream = ask(client, model, stream=True, max_tokens=1000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert ask(client, model, max_tokens=2).usage.completion_tokens <= 2


if __name__ == "__main__":
    main()
