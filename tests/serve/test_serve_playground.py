"""The playground in a real browser, over stages that the test drives and over real engines."""

from __future__ import annotations

import contextlib
import importlib.resources
import math
import re
import wave
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from antiphon.errors import StageDiedError, StageStepError
from antiphon.pipeline.topology import Ear, Edge, EdgeMode, Entry, Stage, StageKind
from antiphon.serve.page import FILES, PATHS
from antiphon.stage.messages import Abort, Submit
from antiphon.testing.fake_stage import FakeStage
from browser import INSECURE_HOST, Visit, chromium, visit
from fake_server import ANSWERS, BY_HAND, FAKE, READY, FakeServer, WordsEntry
from live_server import LiveServer

RATE = 24_000
SLOW_MS = 120_000  # for real engines, beside other work
ANSWER = ".answer >> nth=-1"
DONE = ".answer[data-state=done]"
WORDS = ".answer .words"
ENTRY = "fake_server:WordsEntry"
# With a stage that writes down what is heard.
EARED = replace(
    FAKE,
    stages=(Stage("ear", StageKind.AR, FAKE.stages[0].model, output="transcript"), *FAKE.stages),
    edges=(
        Edge("hear", "ear", "thinker", EdgeMode.FULL, "sample:Said", "sample:Turn", join=True),
        *FAKE.edges,
    ),
    entries=(
        replace(FAKE.entries[0], ear=Ear("ear", ENTRY)),
        FAKE.entries[1],
        Entry("transcribe", "ear", ENTRY, inputs=("audio",), outputs=("transcript",)),
    ),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with the module: while it is open, this thread's event loop is playwright's."""
    with chromium() as found:
        yield found


@dataclass
class Hand:
    """A server whose stages do what the test says, and a page at it."""

    server: FakeServer
    seen: Visit

    def stage(self, name: str) -> FakeStage:
        return self.server.stages[name]

    def unit(self, name: str) -> str:
        """The uid of what the stage works on, once there is something."""
        stage = self.stage(name)
        return self.server.wait_for(lambda: next(iter(stage.live), ""))

    def write(self, *tokens: int) -> None:
        uid = self.unit("thinker")
        self.server.on_loop(lambda: self.stage("thinker").tokens(uid, *tokens))

    def hand_on(self, stage: str, edge: str, *, end: bool = True) -> None:
        uid = self.unit(stage)
        self.server.on_loop(lambda: self.stage(stage).ref(uid, edge, end=end))

    def sound(self, seconds: float, finish: str | None = None) -> None:
        uid = self.unit("code2wav")
        samples = tone(seconds)
        self.server.on_loop(lambda: self.stage("code2wav").audio(uid, samples, finish))

    def finish(self, stage: str) -> None:
        uid = self.unit(stage)
        self.server.on_loop(lambda: self.stage(stage).finish(uid))

    def speak(self, seconds: float) -> None:
        """Two words of text, and so much sound."""
        self.write(1, 2)
        self.hand_on("thinker", "speech", end=False)
        talked = self.unit("talker")
        self.server.on_loop(lambda: self.stage("talker").tokens(talked, 4))
        self.hand_on("talker", "codes", end=False)
        self.sound(seconds)

    def end(self) -> None:
        for stage, edge in (("thinker", "speech"), ("talker", "codes")):
            self.hand_on(stage, edge)
            self.finish(stage)
        self.finish("code2wav")

    def acknowledge(self) -> None:
        """Every stage has been told to abort, and does."""
        for stage in self.server.stages.values():
            self.server.wait_for(lambda stage=stage: stage.pending_aborts)  # type: ignore[misc]
            self.server.on_loop(stage.acknowledge)


@pytest.fixture
def hand(browser: Browser) -> Iterator[Hand]:
    with FakeServer(answers=BY_HAND) as server, visit(browser, server.url) as seen:
        yield Hand(server, seen)
        server.check_clean()


def tone(seconds: float) -> list[float]:
    return [0.5 * math.sin(index / 9) for index in range(round(seconds * RATE))]


def ask(seen: Visit, text: str = "Tell me about the ocean.") -> None:
    """Type it and press Enter."""
    field = seen.page.get_by_label("Ask something")
    expect(field).to_be_enabled()
    field.fill(text)
    field.press("Enter")


def all_heard(seen: Visit) -> None:
    """Nothing is left that another question would interrupt."""
    expect(seen.page.get_by_role("button", name="Interrupt")).to_be_hidden()


def words_seen() -> list[str]:
    """What the model was told last, as "role: text"."""
    request = WordsEntry.seen[-1]
    return [f"{message.role}: {message.content}" for message in request.messages]


# --- the files ------------------------------------------------------------------------------


def test_every_file_of_the_page_is_served_and_kept_from_other_sites() -> None:
    folder = importlib.resources.files("antiphon.serve").joinpath("page")
    assert {file.name for file in folder.iterdir()} == FILES.keys()
    with FakeServer(settings={"api_key": "secret"}) as server:
        for path in PATHS:
            answer = httpx2.get(server.url + path)
            name = path.removeprefix("/page/") if path != "/" else "index.html"
            assert answer.status_code == 200
            assert answer.headers["content-type"] == FILES[name]
            assert answer.content == folder.joinpath(name).read_bytes()
            assert answer.headers["x-content-type-options"] == "nosniff"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert httpx2.head(server.url + path).headers["etag"] == answer.headers["etag"]
        assert httpx2.get(server.url + "/page/index.html").status_code == 401


def test_a_browser_that_has_a_file_is_not_sent_it_again() -> None:
    with FakeServer() as server:
        first = httpx2.get(server.url + "/")
        assert first.headers["cache-control"] == "no-cache"
        tag = {"if-none-match": f'"other", W/{first.headers["etag"]}'}
        again = httpx2.get(server.url + "/", headers=tag)
        assert (again.status_code, again.content) == (304, b"")


# --- an answer ------------------------------------------------------------------------------


def test_an_answer_is_seen_and_heard_while_it_grows(hand: Hand) -> None:
    page = hand.seen.page
    ask(hand.seen)
    expect(page.locator(".question")).to_contain_text("Tell me about the ocean.")
    expect(page.get_by_role("button", name="Interrupt")).to_be_visible()
    hand.write(1)
    expect(page.locator(WORDS)).to_have_text("one")
    expect(page.locator(".live")).to_contain_text("first text")
    hand.speak(0.3)
    expect(page.locator(WORDS)).to_have_text("one one two")
    expect(page.get_by_role("img", name="Waveform of 0.30 s of sound")).to_be_visible()
    hand.sound(0.3)
    expect(page.get_by_role("img", name="Waveform of 0.60 s of sound")).to_be_visible()
    assert not page.locator(DONE).count()
    hand.end()
    expect(page.locator(DONE)).to_be_visible()
    assert page.locator(".figures").inner_text().startswith("First text")
    expect(page.locator(".figures")).to_contain_text("First sound")
    # It was all heard: nothing is left to interrupt.
    expect(page.get_by_role("button", name="Interrupt")).to_be_hidden()
    hand.seen.check()


def test_the_waveform_is_drawn(hand: Hand) -> None:
    drawn = """(() => {
        const canvas = document.querySelector("canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return data.filter((value, index) => index % 4 === 3 && value).length;
    })()"""
    ask(hand.seen)
    hand.speak(0.5)
    expect(hand.seen.page.get_by_role("img", name="Waveform of 0.50 s of sound")).to_be_visible()
    hand.seen.until(f"{drawn} > 0")
    before = hand.seen.page.evaluate(drawn)
    hand.sound(1.5)
    hand.seen.until(f"{drawn} > {2 * before}")
    hand.end()
    expect(hand.seen.page.locator(DONE)).to_be_visible()


def test_silence_where_sound_should_be_is_counted(hand: Hand) -> None:
    page = hand.seen.page
    ask(hand.seen)
    hand.speak(0.1)
    expect(page.get_by_role("button", name="Stop the sound")).to_be_visible()
    # Its sound goes by the page's own clock.
    due = page.evaluate("performance.now() + 400")
    hand.seen.until(f"performance.now() > {due}")
    hand.sound(0.1)
    expect(page.locator(".live")).to_contain_text("1 underrun")
    hand.end()
    expect(page.locator(".figures")).to_contain_text("1 underrun")


def test_the_timeline_shows_every_stage_and_edge(hand: Hand) -> None:
    page = hand.seen.page
    ask(hand.seen)
    hand.speak(0.2)
    hand.end()
    chart = page.locator(".chart")
    expect(chart).to_be_visible()
    assert [label for label in chart.locator(".label").all_inner_texts() if label] == [
        "thinker",
        "speech",
        "talker",
        "codes",
        "code2wav",
        "answer",
    ]
    # Every stage ran, the later ones waited for their input; each edge's first chunk is marked.
    assert chart.locator(".bar.run").count() == 3
    assert chart.locator(".bar.wait").count() == 2
    assert chart.locator(".first").count() == 2
    expect(chart).to_contain_text("first sound")
    page.get_by_text("As a table").click()
    assert page.locator(".tables tbody tr").count() == 5
    hand.seen.check()


def test_only_the_newest_timeline_stands_open(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        page = seen.page
        ways = page.locator(".way")
        ask(seen, "One.")
        expect(page.locator(".chart")).to_be_visible()
        all_heard(seen)
        ask(seen, "Two.")
        expect(ways).to_have_count(2)
        expect(ways.nth(0)).not_to_have_attribute("open", "")
        expect(ways.nth(1)).to_have_attribute("open", "")
        expect(ways.nth(0).locator(".figures")).to_be_visible()
        expect(ways.nth(0).locator(".chart")).to_be_hidden()
        # By keyboard it opens again; what the colours mean is said once all the same.
        ways.nth(0).locator("summary").first.press("Enter")
        expect(ways.nth(0).locator(".chart")).to_be_visible()
        expect(page.locator(".legend:visible")).to_have_count(1)
        # What the reader closes stays closed, also for the answers that follow.
        ways.nth(1).locator("summary").first.press("Enter")
        all_heard(seen)
        ask(seen, "Three.")
        expect(ways).to_have_count(3)
        expect(page.locator(".figures:visible")).to_have_count(3)
        expect(ways.nth(2).locator(".chart")).to_be_hidden()
        seen.check()


def test_an_answer_is_heard_again_and_saved(hand: Hand, tmp_path: Path) -> None:
    page = hand.seen.page
    ask(hand.seen)
    hand.speak(1.5)
    hand.end()
    expect(page.get_by_role("button", name="Interrupt")).to_be_hidden()
    play = page.get_by_role("button", name="Play the answer again")
    play.click()
    expect(page.get_by_role("button", name="Stop the sound")).to_be_visible()
    expect(play).to_be_visible()  # it has ended by itself
    with page.expect_download() as saving:
        page.get_by_role("button", name="WAV").click()
    saving.value.save_as(tmp_path / "answer.wav")
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        assert file.getnframes() == RATE * 3 // 2
    hand.seen.check()


# --- interrupting ---------------------------------------------------------------------------


def test_an_interrupt_ends_the_request_on_every_stage_and_silences_it(hand: Hand) -> None:
    page = hand.seen.page
    ask(hand.seen)
    hand.speak(5.0)
    expect(page.get_by_role("button", name="Stop the sound")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".answer[data-state=interrupted]")).to_be_visible()
    expect(page.get_by_role("button", name="Play the answer again")).to_be_enabled()
    expect(page.get_by_role("button", name="Interrupt")).to_be_hidden()
    hand.acknowledge()
    hand.server.check_clean()
    assert all(len(stage.sent(Abort)) == 1 for stage in hand.server.stages.values())
    expect(page.locator(".note").first).to_contain_text("Interrupted")


def test_the_conversation_goes_on_from_what_was_said(hand: Hand) -> None:
    page = hand.seen.page
    ask(hand.seen, "Count.")
    hand.write(*list(range(1, 8)) * 6)  # at 15 characters a second about 14 s
    hand.speak(20.0)
    expect(page.locator(".time")).to_contain_text("0:01 /")
    page.get_by_role("button", name="Interrupt").click()
    hand.acknowledge()
    said = page.locator(WORDS + " > span").first.inner_text()
    unsaid = page.locator(".unsaid").inner_text()
    assert said.startswith("one two three")
    assert unsaid.split()[0] in ("four", "five", "six", "seven", "one")
    ask(hand.seen, "Go on.")
    hand.server.wait_for(lambda: len(hand.stage("thinker").sent(Submit)) == 2)
    assert words_seen() == ["user: Count.", f"assistant: {said}", "user: Go on."]
    page.keyboard.press("Escape")
    hand.acknowledge()


def test_a_new_question_interrupts_the_answer(hand: Hand) -> None:
    ask(hand.seen, "First.")
    hand.unit("thinker")
    ask(hand.seen, "Second.")
    hand.acknowledge()
    expect(hand.seen.page.locator(".answer[data-state=interrupted]")).to_be_visible()
    hand.server.wait_for(lambda: len(hand.stage("thinker").sent(Submit)) == 2)
    # Nothing had been said: the first question is as if it had not been put.
    assert words_seen() == ["user: Second."]
    hand.speak(0.1)
    hand.end()
    expect(hand.seen.page.locator(DONE)).to_be_visible()


# --- asking ---------------------------------------------------------------------------------


def record(seen: Visit) -> None:
    """A second of it or more."""
    seen.page.get_by_role("button", name="Record a question").click()
    expect(seen.page.get_by_text(re.compile("Recording 0:0[1-9]"))).to_be_visible()
    seen.page.get_by_role("button", name="Send the recording").click()


def test_a_recorded_question_arrives_as_sound(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        record(seen)
        expect(seen.page.locator(DONE)).to_be_visible()
        expect(seen.page.locator(".question")).to_contain_text("Recorded question")
        (message,) = WordsEntry.seen[-1].messages
        (clip,) = message.audio
        assert clip.sample_rate == 16_000
        assert 0.9 < clip.seconds < 4
        assert abs(clip.array()).max() > 0.01  # the beep of Chromium's own microphone
        seen.check()


def test_what_was_heard_is_shown_and_told_again_as_text(browser: Browser) -> None:
    answers = {**ANSWERS, "ear": replace(ANSWERS["talker"], token_ids=(7,))}
    with FakeServer(topology=EARED, answers=answers) as server, visit(browser, server.url) as seen:
        record(seen)
        expect(seen.page.locator(".question .heard")).to_have_text("Heard: seven")
        expect(seen.page.locator(DONE)).to_be_visible()
        heard = len(server.stages["ear"].sent(Submit))
        assert heard == 2  # for the answer, and to be shown
        all_heard(seen)
        ask(seen, "And then?")
        expect(seen.page.locator(DONE)).to_have_count(2)
        told = ["user: seven", "assistant: one two three", "user: And then?"]
        assert words_seen() == told
        assert not any(message.audio for message in WordsEntry.seen[-1].messages)
        assert len(server.stages["ear"].sent(Submit)) == heard
        seen.check()


def test_a_recording_that_is_not_written_down_is_sent_again(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        record(seen)
        expect(seen.page.locator(DONE)).to_be_visible()
        all_heard(seen)
        ask(seen, "And then?")
        expect(seen.page.locator(DONE)).to_have_count(2)
        assert [len(message.audio) for message in WordsEntry.seen[-1].messages] == [1, 0, 0]
        assert not seen.page.locator(".heard").count()
        seen.check()


def test_a_recording_can_be_discarded(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        seen.page.get_by_role("button", name="Record a question").click()
        expect(seen.page.get_by_text("Recording 0:0")).to_be_visible()
        seen.page.keyboard.press("Escape")
        expect(seen.page.locator("#recording")).to_be_hidden()
        assert seen.page.locator(".turn").count() == 0
        seen.check()


def test_settings_reach_the_request(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        page = seen.page
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("What the model is told first").fill("Be brief.")
        page.get_by_label("Longest answer, in tokens").fill("7")
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_label("Voice").fill("ethan")
        page.get_by_role("button", name="Apply").click()
        ask(seen)
        expect(page.locator(DONE)).to_be_visible()
        assert words_seen() == ["system: Be brief.", "user: Tell me about the ocean."]
        assert WordsEntry.seen[-1].params == {"speaker": "ethan"}
        submit = server.stages["thinker"].sent(Submit)[0]
        assert (submit.sampling["max_tokens"], submit.sampling["temperature"]) == (7, 0.5)
        seen.check()


def test_an_answer_in_text_only_leaves_the_other_stages_alone(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        seen.page.get_by_role("button", name="Settings").click()
        seen.page.get_by_label("Answer in text only").check()
        seen.page.keyboard.press("Enter")
        ask(seen)
        expect(seen.page.locator(DONE)).to_be_visible()
        expect(seen.page.locator(WORDS)).to_have_text("one two three")
        expect(seen.page.locator(".sound")).to_be_hidden()
        expect(seen.page.locator(".figures")).to_contain_text("First text")
        expect(seen.page.locator(".figures")).not_to_contain_text("First sound")
        assert not server.stages["talker"].sent(Submit)
        seen.check()


def test_a_text_is_spoken_as_it_is(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        seen.page.get_by_text("Speak this text").click()
        field = seen.page.get_by_label("Write what is to be spoken")
        field.fill("Good morning.")
        field.press("Enter")
        expect(seen.page.locator(DONE)).to_be_visible()
        expect(seen.page.get_by_role("img", name="Waveform of 0.20 s of sound")).to_be_visible()
        assert not server.stages["thinker"].sent(Submit)
        assert WordsEntry.seen[-1].text == "Good morning."
        expect(seen.page.locator(".chart")).to_be_visible()
        expect(seen.page.locator(".figures")).to_contain_text("First sound")
        expect(seen.page.locator(".figures")).not_to_contain_text("First text")
        seen.check()


def test_a_new_conversation_forgets_the_old_one(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        ask(seen, "One.")
        expect(seen.page.locator(DONE)).to_be_visible()
        seen.page.get_by_role("button", name="New conversation").click()
        assert seen.page.locator(".turn").count() == 0
        ask(seen, "Two.")
        expect(seen.page.locator(DONE)).to_be_visible()
        assert words_seen() == ["user: Two."]


# --- what goes wrong ------------------------------------------------------------------------


def test_a_server_that_is_starting_says_so_stage_by_stage(browser: Browser) -> None:
    with FakeServer(ready=False) as server, visit(browser, server.url) as seen:
        page = seen.page
        expect(page.get_by_text("The server is starting.")).to_be_visible()
        expect(page.locator("#stages li")).to_have_count(3)
        ask(seen)
        problem = page.locator(".problem")
        expect(problem).to_contain_text("The server is still starting.")
        expect(problem.get_by_role("button")).to_contain_text("Try again in")
        for stage in server.stages.values():
            server.on_loop(lambda stage=stage: stage.emit(READY))  # type: ignore[misc]
        expect(page.locator("#health")).to_have_text("Ready")
        expect(page.locator("#starting")).to_be_hidden()
        seen.check("503")


def test_a_full_server_says_when_to_try_again(browser: Browser) -> None:
    stages = tuple(replace(stage, engine={"max_num_seqs": 1}) for stage in FAKE.stages)
    topology = replace(FAKE, stages=stages)
    with (
        FakeServer(answers=BY_HAND, topology=topology, settings={"max_queued": 0}) as server,
        visit(browser, server.url) as other,
        visit(browser, server.url) as seen,
    ):
        ask(other, "I was first.")
        first = Hand(server, other)
        first.unit("thinker")
        ask(seen)
        problem = seen.page.locator(".problem")
        expect(problem).to_contain_text("as much to do as it can take")
        first.speak(0.1)
        first.end()
        problem.get_by_role("button", name="Try again", exact=True).click()
        first.speak(0.1)
        first.end()
        expect(seen.page.locator(DONE)).to_be_visible()
        assert words_seen() == ["user: Tell me about the ocean."]
        seen.check("429")
        server.check_clean()


def test_an_error_amid_an_answer_is_told_with_it(hand: Hand) -> None:
    page = hand.seen.page
    ask(hand.seen)
    hand.write(1, 2)
    expect(page.locator(WORDS)).to_have_text("one two")
    uid = hand.unit("talker")
    failure = StageStepError("the talker lost its place")
    hand.server.on_loop(lambda: hand.stage("talker").fail(uid, failure))
    hand.server.wait_for(lambda: hand.stage("thinker").pending_aborts)
    for stage in hand.server.stages.values():
        hand.server.on_loop(stage.acknowledge)
    expect(page.locator(".problem")).to_contain_text("A part of the server failed")
    expect(page.locator(".problem")).to_contain_text("The talker lost its place.")
    expect(page.locator(".answer[data-state=failed]")).to_be_visible()
    hand.seen.check()


def test_a_stage_that_dies_is_named(browser: Browser) -> None:
    with FakeServer(answers=BY_HAND) as server, visit(browser, server.url) as seen:
        driven = Hand(server, seen)
        ask(seen)
        driven.write(1)
        expect(seen.page.locator(WORDS)).to_have_text("one")
        server.on_loop(lambda: driven.stage("talker").die(StageDiedError("it fell")))
        for stage in (driven.stage("thinker"), driven.stage("code2wav")):
            server.wait_for(lambda stage=stage: stage.pending_aborts)  # type: ignore[misc]
            server.on_loop(stage.acknowledge)
        expect(seen.page.locator(".problem")).to_contain_text("A part of the server stopped")
        expect(seen.page.locator("#health")).to_have_text("Not everything works")
        expect(seen.page.locator("#stages")).to_contain_text("gone: it fell")
        seen.check("503")


@pytest.mark.parametrize("dead", ["talker", "thinker"])
def test_without_a_stage_text_is_offered_where_it_still_works(browser: Browser, dead: str) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        page = seen.page
        expect(page.locator("#health")).to_have_text("Ready")
        server.on_loop(lambda: server.stages[dead].die(StageDiedError("it fell")))
        ask(seen)
        problem = page.locator(".problem")
        expect(problem).to_contain_text("A part of the server that this needs is not running.")
        expect(problem).to_contain_text(f"Stage '{dead}' is not running: it fell.")
        text = problem.get_by_role("button", name="Ask for text only")
        if dead == "thinker":
            assert not text.count()
        else:
            text.click()
            expect(page.locator(DONE)).to_be_visible()
            expect(page.locator(WORDS).last).to_have_text("one two three")
            assert words_seen() == ["user: Tell me about the ocean."]
        seen.check("503")


def test_a_server_that_sleeps_says_so(browser: Browser) -> None:
    with FakeServer() as server:
        server.run(server.omni.sleep())
        with visit(browser, server.url) as seen:
            expect(seen.page.locator("#health")).to_have_text("Sleeping")
            title = "The server sleeps; calls wait until it is woken."
            expect(seen.page.get_by_role("heading", name=title)).to_be_visible()
            server.run(server.omni.wake())
            expect(seen.page.locator("#health")).to_have_text("Ready")
            expect(seen.page.locator("#starting")).to_be_hidden()
            seen.check()


def test_the_key_is_asked_for_and_kept_for_the_tab(browser: Browser) -> None:
    with (
        FakeServer(settings={"api_key": "secret"}) as server,
        visit(browser, server.url) as seen,
    ):
        page = seen.page
        expect(page.get_by_role("dialog")).to_contain_text("asks for a key")
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The key that was given is not right.")).to_be_visible()
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        ask(seen)
        expect(page.locator(DONE)).to_be_visible()
        page.reload()
        expect(page.get_by_label("Ask something")).to_be_enabled()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        seen.check("401")


def test_a_server_that_has_gone_is_told_of(browser: Browser) -> None:
    with contextlib.ExitStack() as life:
        server = life.enter_context(FakeServer())
        with visit(browser, server.url) as seen:
            expect(seen.page.locator("#health")).to_have_text("Ready")
            life.close()
            ask(seen)
            expect(seen.page.locator(".problem")).to_contain_text("The server cannot be reached.")
            expect(seen.page.locator("#health")).to_have_text("Not reachable")
            seen.check("ERR_CONNECTION")


# --- what a pipeline or a browser cannot do -------------------------------------------------


def _with_chat(**fields: Any) -> Any:
    chat, speech = FAKE.entries
    return replace(FAKE, entries=(replace(chat, **fields), speech))


def test_a_pipeline_that_does_not_hear_is_not_offered_a_recording(browser: Browser) -> None:
    topology = _with_chat(inputs=("text",))
    with FakeServer(topology=topology) as server, visit(browser, server.url) as seen:
        expect(seen.page.get_by_text("This pipeline does not hear.")).to_be_visible()
        expect(seen.page.get_by_role("button", name="Record a question")).to_be_disabled()
        seen.check()


def test_a_pipeline_that_only_writes_is_asked_for_text(browser: Browser) -> None:
    topology = replace(FAKE, entries=(replace(FAKE.entries[0], outputs=("text",)),))
    with FakeServer(topology=topology) as server, visit(browser, server.url) as seen:
        expect(seen.page.get_by_text("Ask, and read the answer")).to_be_visible()
        expect(seen.page.get_by_label("Ask something")).to_be_enabled()
        expect(seen.page.get_by_text("Speak this text")).to_be_hidden()
        ask(seen)
        expect(seen.page.locator(DONE)).to_be_visible()
        expect(seen.page.locator(WORDS)).to_have_text("one two three")
        assert server.stages.keys() == {"thinker"}  # the others were not even started
        seen.check()


def test_keys_are_not_told_of_where_there_are_none(browser: Browser) -> None:
    touch = {"has_touch": True, "is_mobile": True, "viewport": {"width": 390, "height": 740}}
    with FakeServer() as server, visit(browser, server.url, **touch) as seen:
        expect(seen.page.get_by_label("Ask something")).to_be_enabled()
        expect(seen.page.locator(".keys")).to_be_hidden()
    with FakeServer() as server, visit(browser, server.url) as seen:
        expect(seen.page.locator(".keys")).to_be_visible()


def test_a_page_that_may_not_record_says_why(browser: Browser) -> None:
    with FakeServer(settings={"allow_origins": ("*",)}) as server:
        url = server.url.replace("127.0.0.1", INSECURE_HOST)
        with visit(browser, url) as seen:
            expect(seen.page.locator("#no-microphone")).to_contain_text("HTTPS")
            expect(seen.page.get_by_role("button", name="Record a question")).to_be_disabled()
            ask(seen)
            expect(seen.page.locator(DONE)).to_be_visible()


def test_a_pipeline_that_only_speaks_has_only_that(browser: Browser) -> None:
    speech = Entry("speech", "talker", "fake_server:WordsEntry")
    topology = replace(FAKE, stages=FAKE.stages[1:], edges=FAKE.edges[1:], entries=(speech,))
    with FakeServer(topology=topology) as server, visit(browser, server.url) as seen:
        expect(seen.page.get_by_label("Write what is to be spoken")).to_be_enabled()
        expect(seen.page.locator("#modes")).to_be_hidden()
        seen.check()


def test_pictures_are_told_to_be_beyond_the_page(browser: Browser) -> None:
    stages = tuple(
        replace(stage, output="image") if stage.name == "code2wav" else stage
        for stage in FAKE.stages
    )
    topology = replace(FAKE, stages=stages, entries=FAKE.entries[:1])
    with FakeServer(topology=topology, answers={}) as server, visit(browser, server.url) as seen:
        expect(seen.page.get_by_role("alert").first).to_contain_text("answers with pictures")
        expect(seen.page.get_by_label("Ask something")).to_be_disabled()
        seen.check()


# --- how it looks and is used ---------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off(browser: Browser, width: int) -> None:
    answers = {**ANSWERS, "code2wav": replace(ANSWERS["code2wav"], samples=tuple(tone(2.0)))}
    size = {"width": width, "height": 740}
    with FakeServer(answers=answers) as server, visit(browser, server.url, viewport=size) as seen:
        ask(seen, "a-word-that-is-rather-longer-than-a-narrow-screen-is-wide" * 2)
        expect(seen.page.locator(DONE)).to_be_visible()
        if width < 768:
            seen.page.get_by_text("Timeline", exact=True).click()
        seen.page.get_by_text("As a table").click()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        for button in seen.page.get_by_role("button").all():
            box = button.bounding_box()
            if button.is_visible() and box is not None:
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                assert box["height"] >= 24  # WCAG 2.2, 2.5.8
        seen.check()


def test_it_can_be_used_by_keyboard_alone(browser: Browser) -> None:
    with FakeServer() as server, visit(browser, server.url) as seen:
        page = seen.page
        expect(page.get_by_label("Ask something")).to_be_focused()
        page.keyboard.type("Line one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("line two")
        page.keyboard.press("Enter")
        expect(page.locator(DONE)).to_be_visible()
        assert words_seen() == ["user: Line one\nline two"]
        expect(page.locator("#announcer")).to_have_text("one two three")
        seen.check()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_voice_pipeline_is_heard_and_interrupted(
    browser: Browser, voice_server: LiveServer
) -> None:
    count = """
        globalThis.contexts = [];
        const Real = globalThis.AudioContext;
        globalThis.AudioContext = class extends Real {
            constructor(options) { super(options); globalThis.contexts.push(this); }
        };
    """
    with visit(browser, voice_server.url, script=count) as seen:
        page = seen.page
        ask(seen, "What is the capital of France?")
        expect(page.locator(".play[data-playing=true]")).to_be_visible(timeout=SLOW_MS)
        assert page.evaluate("contexts.map(context => context.state)") == ["running"]
        expect(page.locator(DONE)).to_be_visible(timeout=SLOW_MS)
        assert "Paris" in page.locator(WORDS).inner_text()
        expect(page.locator(".chart")).to_contain_text("first sound")
        expect(page.locator(".play[data-playing=true]")).to_have_count(0, timeout=SLOW_MS)
        ask(seen, "Tell me a long story about the ocean.")
        expect(page.locator(".play[data-playing=true]")).to_be_visible(timeout=SLOW_MS)
        page.keyboard.press("Escape")
        expect(page.locator(".answer[data-state=interrupted]")).to_be_visible()
        expect(page.locator(".play[data-playing=true]")).to_have_count(0)
        seen.check()
        health = httpx2.get(voice_server.url + "/health").json()
        assert health["status"] == "ok"
