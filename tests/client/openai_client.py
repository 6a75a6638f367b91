"""The official OpenAI client against `foretoken up` on the models of this repository.

usage: openai_client.py PATH_TO_FORETOKEN
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "story-10m"
PROMPT = "Question: Tom has 3 apples and buys 5 more."
STARTUP_SECONDS = 120


class Server:
    """`foretoken up` on a free port, with a state folder of its own."""

    def __init__(self, executable):
        self.folder = tempfile.TemporaryDirectory()
        command = [executable, "up", "-f", ROOT / "examples/laptop.yaml", "--port", "0"]
        self.process = subprocess.Popen(
            [*map(str, command), "--state-dir", self.folder.name], stdout=subprocess.DEVNULL
        )
        self.url = self._wait()

    def _wait(self):
        state = pathlib.Path(self.folder.name, "state.json")
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"foretoken up ended with {self.process.returncode}")
            if state.exists():
                content = json.loads(state.read_text())
                if content["ready"]:
                    return content["url"]
            time.sleep(0.1)
        self.stop()
        raise SystemExit("foretoken up did not become ready")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.folder.cleanup()
        return code


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1])
        url = f"{cls.server.url}/v1"
        cls.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"foretoken up ended with {code}"

    def complete(self, **options):
        options = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **options}
        return self.client.completions.create(**options)

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])

    def test_a_chat_answers_and_streams_the_same(self):
        options = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "How many apples?"}],
            "max_tokens": 24,
            "seed": 5,
            "temperature": 1.0,
        }
        whole = self.client.chat.completions.create(**options)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        stream = self.client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        text, usage = "", None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_a_completion_streams_the_same(self):
        whole = self.complete()
        self.assertGreater(len(whole.choices[0].text), 0)
        self.assertEqual(whole.usage.completion_tokens, 24)
        text = "".join(c.choices[0].text for c in self.complete(stream=True) if c.choices)
        self.assertEqual(text, whole.choices[0].text)

    def test_log_probabilities_are_given(self):
        choice = self.complete(logprobs=3).choices[0]
        self.assertEqual(len(choice.logprobs.token_logprobs), 24)
        self.assertTrue(all(value <= 0 for value in choice.logprobs.token_logprobs))
        chat = self.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=4,
            logprobs=True,
            top_logprobs=2,
        )
        for token in chat.choices[0].logprobs.content:
            self.assertEqual(len(token.top_logprobs), 2)

    def test_n_choices_differ_and_a_seed_repeats_them(self):
        options = {"n": 3, "temperature": 1.0, "seed": 11}
        texts = [choice.text for choice in self.complete(**options).choices]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual([choice.text for choice in self.complete(**options).choices], texts)

    def test_stop_strings_end_the_text(self):
        text = self.complete().choices[0].text
        stop = text[4:8]
        cut = self.complete(stop=[stop])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertEqual(cut.choices[0].text, text[: text.index(stop)])

    def test_speculation_is_reported_and_changes_nothing(self):
        plain = self.complete(extra_body={"foretoken": {"policy": "Autoregressive"}})
        drafted = self.complete(
            extra_body={"foretoken": {"policy": "Speculative", "lookahead": 5}}
        )
        self.assertEqual(drafted.choices[0].text, plain.choices[0].text)
        report = drafted.usage.model_extra["foretoken"]
        self.assertEqual(report["policy"], "Speculative")
        self.assertGreater(report["accepted"], 0)

    def test_mistakes_are_openai_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="nobody")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(temperature=-1)
        self.assertIn("temperature", str(caught.exception))
        with self.assertRaises(openai.BadRequestError):
            self.complete(prompt="word " * 5000)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
