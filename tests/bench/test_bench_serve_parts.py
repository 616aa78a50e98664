"""Parts of the server benchmark that need no server: events, prompts, arrivals, numbers."""

from __future__ import annotations

import asyncio
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from antiphon.bench.serve_answer import SAMPLE_RATE, Answer, AnswerMeter, Ending
from antiphon.bench.serve_call import Call, Endpoint
from antiphon.bench.serve_client import chat_body, speech_body
from antiphon.bench.serve_load import Load, Run, Watch, due_times, leave_times, run_load
from antiphon.bench.serve_measures import MEASURES, summarize
from antiphon.bench.serve_prompts import Message, Prompt, built_in, read_prompts
from antiphon.bench.serve_report import report
from antiphon.bench.serve_sse import EventParser, TokenDetails, Usage
from antiphon.errors import InvalidRequestError

KEYS = tuple(measure.key for measure in MEASURES)

# --- events ---------------------------------------------------------------------------------------

STREAM = (
    b": ping\n\n"
    b'data: {"a":1}\n\n'
    b"event: x\r\ndata:two\r\ndata: lines\r\n\r\n"
    b"id: 7\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b"two\nlines", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    parser = EventParser()
    cuts = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for cut in cuts for event in parser.feed(cut)] == EVENTS


def test_an_event_without_its_empty_line_is_none() -> None:
    parser = EventParser()
    assert parser.feed(b"data: half\n") == []
    assert parser.feed(b"\n") == [b"half"]


# --- an answer ------------------------------------------------------------------------------------


def test_an_answer_is_timed_by_its_text_and_its_sound() -> None:
    """An empty piece of text, as the first of a stream has it, is not the first token."""
    meter = AnswerMeter(10.0)
    meter.text("", 10.1)
    meter.text("one", 10.5)
    meter.text(" two", 10.75)
    meter.audio(SAMPLE_RATE * 2, 11.0)  # a second
    meter.audio(SAMPLE_RATE, 12.25)  # half a second, a quarter too late
    meter.text(" three", 12.5)
    meter.usage(Usage(5, 40, TokenDetails(text_tokens=5)))
    answer = meter.answer(Ending.COMPLETED, 13.0)
    assert (answer.ttft_s, answer.ttfa_s, answer.latency_s) == (0.5, 1.0, 2.5)
    assert answer.itl_s == (0.25, 1.75)
    assert answer.tpot_s == 2.0 / 4
    assert answer.text == "one two three"
    assert (answer.prompt_tokens, answer.output_tokens) == (5, 5)
    assert (answer.audio_s, answer.rtf) == (1.5, 2.5 / 1.5)
    assert answer.continuity is not None
    assert (answer.continuity.worst_underrun_s, answer.continuity.gaps) == (0.25, 1)


def test_sound_may_be_cut_within_a_sample() -> None:
    meter = AnswerMeter(0.0)
    for at in range(5):
        meter.audio(3, float(at))
    assert meter.answer(Ending.COMPLETED, 5.0).audio_s == pytest.approx(7 / SAMPLE_RATE)


def test_without_usage_pieces_are_tokens() -> None:
    meter = AnswerMeter(0.0)
    for at in range(1, 4):
        meter.text("x", float(at))
    answer = meter.answer(Ending.COMPLETED, 4.0)
    assert (answer.output_tokens, answer.tpot_s) == (3, 1.0)


def test_an_answer_that_failed_lasts_until_its_end() -> None:
    answer = AnswerMeter(1.0).answer(Ending.FAILED, 4.0, "why")
    assert (answer.latency_s, answer.error) == (3.0, "why")
    assert (answer.ttft_s, answer.ttfa_s, answer.rtf, answer.tpot_s) == (None,) * 4


# --- what is sent ---------------------------------------------------------------------------------

CALL = Call(url="http://a", model="m")


def test_what_is_not_asked_for_is_not_sent() -> None:
    body = chat_body(CALL, built_in()[0])
    assert set(body) == {"model", "messages", "stream", "stream_options"}
    assert list(body["messages"]) == [{"role": "user", "content": "Why is the sky blue?"}]
    assert speech_body(CALL, built_in()[0]) == {
        "model": "m",
        "input": "Why is the sky blue?",
        "response_format": "pcm",
    }


def test_a_prompt_goes_before_the_command_line_and_extra_before_all() -> None:
    call = Call(
        url="http://a",
        model="m",
        endpoint=Endpoint.CHAT,
        modalities=("text", "audio"),
        voice="ash",
        max_tokens=9,
        temperature=0.0,
        extra_body={"seed": 3, "temperature": 1},
    )
    body = chat_body(call, Prompt((Message("user", "Hi"),), max_tokens=4))
    assert (body["max_completion_tokens"], body["temperature"], body["seed"]) == (4, 1, 3)
    assert body["modalities"] == ["text", "audio"]
    assert body["audio"] == {"format": "pcm16", "voice": "ash"}


def test_ignore_eos_is_where_the_server_has_it() -> None:
    theirs = Call(url="http://a", model="m", ignore_eos=True)
    ours = Call(url="http://a", model="m", ignore_eos=True, text_stage="thinker")
    assert chat_body(theirs, built_in()[0])["ignore_eos"] is True
    assert chat_body(ours, built_in()[0])["sampling"] == {"thinker": {"ignore_eos": True}}


# --- prompts --------------------------------------------------------------------------------------


def test_prompts_of_a_text_file_are_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text("Who?\n\n  Where? \n", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(path)] == ["Who?", "Where?"]


def test_prompts_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"prompt": "Who?", "output_tokens": 7, "other": 1}\n'
        '{"messages": [{"role": "system", "content": "Be brief."},'
        ' {"role": "user", "content": "Where?"}]}\n'
    )
    one, two = read_prompts(path)
    assert (one.text, one.max_tokens) == ("Who?", 7)
    assert (two.text, two.messages[0].role, two.max_tokens) == ("Where?", "system", None)


WRONG = {
    "absent": (None, "cannot be read"),
    "empty": ("\n \n", "has no question"),
    "no json": ("{", "line 1"),
    "no prompt": ('{"prompt": " "}', 'neither "prompt" nor "messages"'),
    "wrong type": ('\n{"prompt": 1}', "line 2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_the_callers_error(case: str, tmp_path: Path) -> None:
    text, reason = WRONG[case]
    path = tmp_path / "questions.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequestError, match=reason):
        read_prompts(path)


# --- arrivals -------------------------------------------------------------------------------------


def test_arrivals_take_the_time_that_the_rate_says() -> None:
    due = list(due_times(Load(num_prompts=400, request_rate=20.0)))
    assert due[-1] == pytest.approx(20.0)
    pauses = np.diff([0.0, *due])
    assert pauses.min() > 0
    # Exponential: the standard deviation is the mean.
    assert np.std(pauses) == pytest.approx(np.mean(pauses), rel=0.15)


def test_burstiness_shapes_the_pauses() -> None:
    even = list(due_times(Load(num_prompts=5, request_rate=2.0, burstiness=math.inf)))
    assert even == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5])
    smooth = np.diff(list(due_times(Load(num_prompts=400, request_rate=20.0, burstiness=16))))
    assert np.std(smooth) == pytest.approx(np.mean(smooth) / 4, rel=0.2)


def test_the_seed_decides_all_that_is_random() -> None:
    def drawn(seed: int) -> tuple[list[float], list[float | None]]:
        load = Load(num_prompts=20, request_rate=5.0, disconnect_rate=0.5, seed=seed)
        return list(due_times(load)), list(itertools.islice(leave_times(load), 20))

    assert drawn(1) == drawn(1)
    assert drawn(1)[0] != drawn(2)[0]
    assert drawn(1)[1] != drawn(2)[1]


def test_callers_leave_as_often_and_as_soon_as_asked() -> None:
    load = Load(num_prompts=None, disconnect_rate=0.25, disconnect_within_s=3.0)
    drawn = list(itertools.islice(leave_times(load), 2000))
    leaving = [after for after in drawn if after is not None]
    assert len(leaving) / len(drawn) == pytest.approx(0.25, abs=0.03)
    assert min(leaving) >= 0
    assert 2.9 < max(leaving) <= 3.0


class Caller:
    """Stands in for a client: each call lasts until `turns` other things have happened."""

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns
        self.running = 0
        self.most = 0
        self.asked: list[str] = []

    async def ask(self, prompt: Prompt, leave_after_s: float | None) -> Answer:
        self.asked.append(prompt.text)
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.running -= 1
        return ANSWER


ANSWER = AnswerMeter(0.0).answer(Ending.COMPLETED, 1.0)


async def test_a_closed_loop_has_as_many_callers_as_may_be() -> None:
    caller = Caller()
    told: list[str] = []
    watch = Watch(lambda: told.append("sent"), lambda answer: told.append(answer.ending))
    run = await run_load(caller.ask, built_in(), Load(num_prompts=40, max_concurrency=4), watch)
    assert (len(run.answers), caller.most) == (40, 4)
    assert caller.asked[:17] == [*(prompt.text for prompt in built_in()), caller.asked[0]]
    assert (told.count("sent"), told.count("completed")) == (40, 40)


async def test_without_a_limit_all_are_sent_at_once() -> None:
    caller = Caller()
    await run_load(caller.ask, built_in(), Load(num_prompts=30))
    assert caller.most == 30


async def test_in_an_open_loop_calls_wait_at_the_limit_and_that_is_told() -> None:
    caller = Caller(turns=2000)
    load = Load(num_prompts=4, request_rate=10_000.0, max_concurrency=1)
    run = await run_load(caller.ask, built_in(), load)
    assert caller.most == 1
    waits = [answer.queue_s for answer in run.answers]
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]


@pytest.mark.parametrize("rate", [math.inf, 2000.0])
async def test_a_load_by_time_ends_by_itself(rate: float) -> None:
    load = Load(None, duration_s=0.1, request_rate=rate, max_concurrency=2)
    run = await run_load(Caller().ask, built_in(), load)
    assert len(run.answers) > 4
    assert 0.09 < run.duration_s < 2


# --- numbers --------------------------------------------------------------------------------------


def a_run(count: int = 50) -> Run:
    """Answers with text and sound whose times are drawn, a failed one and one that was left."""
    draw = np.random.default_rng(5)
    answers = []
    for _ in range(count):
        at_s = float(draw.uniform(0, 5))
        meter = AnswerMeter(at_s)
        for number in range(int(draw.integers(3, 9))):
            at_s += float(draw.exponential(0.2))
            meter.text("x", at_s)
            if number % 2:
                meter.audio(4800, at_s)
        meter.usage(Usage(7, 10))
        answers.append(meter.answer(Ending.COMPLETED, at_s))
    answers.append(AnswerMeter(0.0).answer(Ending.FAILED, 90.0, "HTTP 500: no"))
    answers.append(AnswerMeter(0.0).answer(Ending.DISCONNECTED, 90.0))
    return Run(tuple(answers), 10.0)


def test_statistics_are_numpys_over_the_completed() -> None:
    run = a_run()
    summary = summarize(run, KEYS, (50.0, 90.0, 99.5), {})
    good = run.answers[:-2]
    values = {
        "ttft": [1000 * a.ttft_s for a in good if a.ttft_s is not None],
        "itl": [1000 * gap for a in good for gap in a.itl_s],
        "tpot": [1000 * a.tpot_s for a in good if a.tpot_s is not None],
        "e2el": [1000 * a.latency_s for a in good],
        "ttfa": [1000 * a.ttfa_s for a in good if a.ttfa_s is not None],
        "rtf": [a.rtf for a in good if a.rtf is not None],
        "underrun": [1000 * a.continuity.worst_underrun_s for a in good if a.continuity],
        "client_queue_time": [0.0] * len(good),
    }
    assert {one.measure.key for one in summary.statistics} == set(KEYS)
    for one in summary.statistics:
        expected = values[one.measure.key]
        assert one.mean == pytest.approx(np.mean(expected))
        assert one.median == pytest.approx(np.median(expected))
        assert one.std == pytest.approx(np.std(expected))
        for p, value in one.percentiles:
            assert value == pytest.approx(np.percentile(expected, p)), one.measure.key


def test_counts_and_rates_are_over_the_whole_time() -> None:
    summary = summarize(a_run(), KEYS, (), {})
    assert (summary.completed, summary.failed, summary.disconnected) == (50, 1, 1)
    assert summary.failures == (("HTTP 500: no", 1),)
    assert (summary.input_tokens, summary.output_tokens) == (350, 500)
    assert (summary.request_throughput, summary.output_throughput) == (5.0, 50.0)
    assert summary.total_throughput == 85.0
    assert summary.audio_throughput == pytest.approx(summary.audio_s / 10)
    assert summary.request_goodput is None


def test_goodput_counts_answers_that_keep_every_limit() -> None:
    run = a_run()
    good = run.answers[:-2]
    limits = {"ttft": 200.0, "rtf": 6.0}
    kept = [a for a in good if (a.ttft_s or 0) <= 0.2 and (a.rtf or 0) <= 6]
    assert 0 < len(kept) < len(good)
    assert summarize(run, KEYS, (), limits).request_goodput == pytest.approx(len(kept) / 10)


def test_peaks() -> None:
    """Three at once at most: the end of one at the start of another does not overlap."""
    starts = [0.0, 0.5, 0.9, 1.0, 3.0]
    answers = []
    for start_s in starts:
        meter = AnswerMeter(start_s)
        meter.text("a", start_s + 0.25)
        meter.text("b", start_s + 1.0)
        answers.append(meter.answer(Ending.COMPLETED, start_s + 1.0))
    summary = summarize(Run(tuple(answers), 4.0), KEYS, (), {})
    assert summary.peak_concurrent == 3
    # Pieces in the second from 1 s to 2 s: b of 0.0, 0.5 and 0.9, a of 0.9 and 1.0.
    assert summary.peak_output_throughput == 5


def test_only_what_there_is_is_reported() -> None:
    meter = AnswerMeter(0.0)
    meter.audio(48, 0.5)
    spoken = Run((meter.answer(Ending.COMPLETED, 1.0),), 1.0)
    text = report(summarize(spoken, KEYS, (99.0,), {}), Load(num_prompts=1))
    assert " Audio Result " in text
    assert " Text Result " not in text
    assert "TTFT" not in text
    silent = summarize(Run((), 1.0), KEYS, (99.0,), {})
    assert "Audio" not in report(silent, Load(num_prompts=0))


def test_the_report_has_vllms_layout() -> None:
    """50 characters for a rule, 40 for a name; a number of a count has no point."""
    load = Load(num_prompts=52, max_concurrency=8, request_rate=5.0, disconnect_rate=0.1)
    summary = summarize(a_run(), KEYS, (90.0, 99.5), {"ttft": 100.0})
    lines = report(summary, load).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == f"{'Successful requests:':<40} {50:<10}"
    assert lines[-1] == "=" * 50
    assert f"{'Request rate configured (RPS):':<40} {'5.00':<10}" in lines
    assert f"{'Disconnected requests:':<40} {1:<10}" in lines
    assert "---------------Time to First Token----------------" in lines
    assert any(line.startswith("P99.5 RTF:") for line in lines)
    assert any(line.startswith("P90 TTFA (ms):") for line in lines)
    assert f"{1:>6} HTTP 500: no" in lines
    rules = [line for line in lines if line.startswith(("=", "-"))]
    assert {len(line) for line in rules} == {50}
    assert sum("=" in line for line in rules) == 5


def test_only_measures_that_were_asked_for_are_reported() -> None:
    summary = summarize(a_run(), ("ttft",), (50.0,), {})
    assert [one.measure.key for one in summary.statistics] == ["ttft"]
