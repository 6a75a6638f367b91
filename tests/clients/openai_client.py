#!/usr/bin/env python3
"""Checks a running server with the official openai client.

    python3 tests/clients/openai_client.py http://127.0.0.1:8000 [--model NAME] [--api-key KEY]

Needs `pip install openai`. Prints one line per check and exits non-zero if any fails.
"""
import argparse
import json
import sys
import traceback

import openai

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("base_url", help="address of the server, with or without /v1")
parser.add_argument("--model", help="model to ask for; default: the first one listed")
parser.add_argument("--api-key", default="none")
args = parser.parse_args()

root = args.base_url.rstrip("/").removesuffix("/v1")
client = openai.OpenAI(base_url=root + "/v1", api_key=args.api_key, timeout=120, max_retries=0)
MODEL = args.model or client.models.list().data[0].id
PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
MESSAGES = [{"role": "user", "content": PROMPT}]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def same(what, got, want):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def holds(what, condition):
    if not condition:
        raise AssertionError(what)


def falling(what, values):
    same(f"{what}, likeliest first", values, sorted(values, reverse=True))


def own_usage(usage):
    return usage.model_extra["foretoken"]


@check
def models():
    listed = client.models.list()
    holds("the model is listed", MODEL in [model.id for model in listed.data])
    same("the model by name", client.models.retrieve(MODEL).id, MODEL)


@check
def completion():
    reply = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0)
    choice = reply.choices[0]
    holds("text", isinstance(choice.text, str) and choice.text)
    holds("finish reason", choice.finish_reason in ("stop", "length"))
    usage = reply.usage
    holds("tokens", 1 <= usage.completion_tokens <= 12)
    same("total", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    for key in ("rounds", "accepted", "acceptance_length", "seed", "policy"):
        holds(f"usage.foretoken.{key}", key in own_usage(usage))


@check
def chat():
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0)
    message = reply.choices[0].message
    same("role", message.role, "assistant")
    holds("content", message.content)
    plain = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0)
    holds("completion tokens", reply.usage.completion_tokens <= 12)
    holds("both APIs answer", plain.choices[0].text)


@check
def streaming():
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    text, finish, usage, roles = "", None, None, []
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0, stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
                roles += [choice.delta.role] if choice.delta.role else []
    same("streamed text", text, whole.choices[0].message.content)
    same("finish reason", finish, whole.choices[0].finish_reason)
    same("roles", roles, ["assistant"])
    same("usage", usage.completion_tokens, whole.usage.completion_tokens)


@check
def streamed_completion():
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=1, seed=9)
    chunks = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=1, seed=9, stream=True)
    same("streamed text", "".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)


@check
def hanging_up():
    stream = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    holds("the server goes on", client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices)


@check
def seeds():
    def text(seed):
        reply = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=1, seed=seed)
        same("seed told", own_usage(reply.usage)["seed"], seed)
        return reply.choices[0].text

    same("equal seeds", text(7), text(7))
    holds("other seeds give other texts", len({text(seed) for seed in range(4)}) > 1)
    drawn = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=1)
    same("the drawn seed repeats it", text(own_usage(drawn.usage)["seed"]), drawn.choices[0].text)


@check
def several_choices():
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=16, temperature=1, seed=3, n=3)
    same("indices", [choice.index for choice in reply.choices], [0, 1, 2])
    one = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=1, seed=3)
    same("the first of n", reply.choices[0].message.content, one.choices[0].message.content)


@check
def policies():
    texts, answers = set(), set()
    for policy in ("Autoregressive", "Speculative"):
        options = {"model": MODEL, "max_tokens": 48, "temperature": 1, "seed": 5}
        options["extra_body"] = {"foretoken": {"policy": policy}}
        reply = client.completions.create(prompt=PROMPT, **options)
        same("policy told", own_usage(reply.usage)["policy"], policy)
        texts.add(reply.choices[0].text)
        answer = client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], **options)
        same("policy told in a chat", own_usage(answer.usage)["policy"], policy)
        answers.add(answer.choices[0].message.content)
    same("texts of all policies", len(texts), 1)
    same("answers of all policies", len(answers), 1)


@check
def stop_strings():
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=32, temperature=0).choices[0].text
    stop = whole[len(whole) // 2:][:3]
    reply = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=32, temperature=0, stop=[stop] + [f"<<{i}>>" for i in range(999)])
    same("text before the stop string", reply.choices[0].text, whole[:whole.index(stop)])
    same("finish reason", reply.choices[0].finish_reason, "stop")


@check
def logprobs():
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    same("entries", len(content), reply.usage.completion_tokens)
    for entry in content:
        same("alternatives", len(entry.top_logprobs), 3)
        holds("greedy takes the likeliest", entry.token == entry.top_logprobs[0].token)
        falling("alternatives", [top.logprob for top in entry.top_logprobs])
        holds("log-probabilities", entry.logprob <= 0)
    plain = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2, echo=True)
    told = plain.choices[0].logprobs
    holds("echo", plain.choices[0].text.startswith(PROMPT))
    same("tokens", len(told.tokens), plain.usage.total_tokens)
    same("first token", told.token_logprobs[0], None)
    holds("later tokens", all(p <= 0 for p in told.token_logprobs[1:]))
    for top in told.top_logprobs[1:]:
        falling("alternatives of a completion", list(top.values()))


@check
def token_ids():
    ids = client.post("../tokenize", body={"model": MODEL, "prompt": PROMPT}, cast_to=object)["tokens"]
    by_ids = client.completions.create(
        model=MODEL, prompt=ids, max_tokens=12, temperature=0, extra_body={"return_token_ids": True})
    by_text = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0)
    same("ids and text", by_ids.choices[0].text, by_text.choices[0].text)
    told = by_ids.choices[0].model_extra["token_ids"]
    same("ids told", len(told), by_ids.usage.completion_tokens)
    many = client.completions.create(model=MODEL, prompt=[PROMPT, "In the"], max_tokens=4, temperature=0)
    same("choices of two prompts", len(many.choices), 2)


@check
def lengths():
    reply = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=20, extra_body={"ignore_eos": True})
    same("ignore_eos", reply.usage.completion_tokens, 20)
    same("finish reason", reply.choices[0].finish_reason, "length")


@check
def errors():
    def refused(kind, words, **body):
        try:
            client.completions.create(**{"model": MODEL, "prompt": "x", **body})
        except kind as error:
            for word in words:
                holds(f"{word!r} in {error}", word in str(error))
            return
        raise AssertionError(f"{body} was not refused")

    refused(openai.BadRequestError, ["temperature", "9", "2"], temperature=9)
    refused(openai.BadRequestError, ["max_tokens", "0"], max_tokens=0)
    refused(openai.BadRequestError, ["suffix"], suffix="end")
    refused(openai.BadRequestError, ["foretoken.lookahed"], extra_body={"foretoken": {"lookahed": 3}})
    refused(openai.BadRequestError, ["foretoken.policy"], extra_body={"foretoken": {"policy": "Magic"}})
    refused(openai.BadRequestError, ["maximum context length"], prompt=[5] * 1_000_000)
    refused(openai.NotFoundError, ["no-such-model"], model="no-such-model")


failed = 0
for function in CHECKS:
    try:
        function()
        print(f"ok      {function.__name__}")
    except Exception as error:
        failed += 1
        print(f"FAILED  {function.__name__}: {error}")
        if not isinstance(error, AssertionError):
            traceback.print_exc()
print(json.dumps({"model": MODEL, "openai": openai.__version__, "checks": len(CHECKS), "failed": failed}))
sys.exit(1 if failed else 0)
