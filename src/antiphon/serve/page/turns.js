// What the reader sees of the conversation: a turn per question and per answer.

import { el } from "./dom.js";
import { concat, SERVER_RATE, wavOf } from "./pcm.js";
import { figures, timelineView } from "./timeline.js";
import { Waveform } from "./waveform.js";
import { clock, explain, seconds } from "./words.js";

/** A turn that shows a question, typed or recorded. */
export function questionTurn(question, kind) {
  const words = question.text || `Recorded question, ${seconds(question.seconds)}`;
  const said = el("p", { class: "words" }, words);
  const node = turn("question", kind === "speech" ? "To be spoken" : "You", said);
  showHeard(node, question);
  return node;
}

/** Show what a recorded question says, if that is known and not seen yet. */
export function showHeard(node, { heard }) {
  if (heard === null || node.querySelector(".heard")) return;
  node.querySelector(".body").append(el("p", { class: "heard" }, `Heard: ${heard}`));
}

function turn(kind, who, ...content) {
  return el(
    "li",
    { class: `turn ${kind}` },
    el("h2", { class: "who" }, who),
    el("div", { class: "body" }, ...content),
  );
}

/** A turn that shows an answer: grows with it, replays and saves its sound. */
export class AnswerTurn {
  node;
  #answer;
  #player;
  #playback = null; // what is heard of it now
  #speech = null; // the playback of it as it came
  #way = null; // its timeline, once there is one
  #newest = true;
  #began = performance.now();
  #firstTextS = null;
  #firstSoundS = null;
  #order;
  #onQuiet;

  #said = el("span");
  #unsaid = el("span", { class: "unsaid" });
  #words = el("p", { class: "words" }, this.#said, this.#unsaid);
  #canvas = el("canvas", { class: "wave", role: "img" });
  #wave = new Waveform(this.#canvas);
  #play = el("button", { type: "button", class: "round play" });
  #time = el("span", { class: "time" });
  #save = el("button", { type: "button", class: "quiet save", title: "Save as a WAV file" }, "WAV");
  #sound = el("div", { class: "sound", hidden: true }, this.#play, this.#canvas, this.#time, this.#save);
  #live = el("p", { class: "live", "aria-hidden": "true" });
  #notes = el("div", { class: "notes" });

  /** `who` is the heading, `order` the pipeline's stages, `hasWords` whether text will come;
   * `onQuiet` is told whenever its sound ends. */
  constructor(answer, player, { who, order, hasWords, onQuiet }) {
    this.#answer = answer;
    this.#player = player;
    this.#order = order;
    this.#onQuiet = onQuiet;
    this.#words.hidden = !hasWords;
    this.node = turn("answer", who, this.#words, this.#sound, this.#live, this.#notes);
    this.node.setAttribute("aria-busy", "true");
    this.#play.addEventListener("click", () => this.#toggle());
    this.#save.addEventListener("click", () => this.#download());
    this.#watch();
    this.update();
  }

  /** How much of it has been said, in seconds; hearing it again does not count. */
  get heardS() {
    return this.#speech?.heardS ?? 0;
  }

  /** Whether it is being said, which hearing it again is not. */
  get speaking() {
    return this.#speech !== null && !this.#speech.over;
  }

  get #playing() {
    return this.#playback !== null && !this.#playback.over;
  }

  /** Text has come. */
  text() {
    this.#firstTextS ??= this.#elapsed();
    this.update();
  }

  /** Sound has come: play it and draw it. */
  sound(samples) {
    if (this.#firstSoundS === null) {
      this.#firstSoundS = this.#elapsed();
      this.#begin();
      this.#speech = this.#playback;
    }
    this.#playback.push(samples);
    this.#wave.add(samples);
    this.update();
  }

  /** No more will come; what has come may still be heard. */
  complete() {
    this.#playback?.complete();
    this.node.setAttribute("aria-busy", "false");
    this.update();
  }

  update() {
    const { state, text, said, length } = this.#answer;
    const cut = state === "interrupted" || state === "failed" ? said.length : text.length;
    this.#said.textContent = text.slice(0, cut);
    this.#unsaid.textContent = text.slice(cut);
    this.node.dataset.state = state;
    this.#sound.hidden = length === 0;
    this.#play.dataset.playing = this.#playing;
    this.#play.setAttribute("aria-label", this.#playing ? "Stop the sound" : "Play the answer again");
    // What arrives still is played as it arrives; from the start it can be heard after that.
    this.#play.disabled = !this.#answer.over && !this.#playing;
    this.#save.hidden = !this.#answer.over;
    this.#showTime();
  }

  /** Another answer follows: of this one's timeline its figures stay in sight. */
  fold() {
    this.#newest = false;
    if (this.#way) this.#way.open = false;
  }

  /** How it ended, what it went through, what went wrong. `again` repeats it, `asText` (or null)
   * repeats it without sound. */
  conclude(again, asText = null) {
    this.#live.hidden = true;
    const { state, timeline, problem, finish, text, said } = this.#answer;
    const notes = [];
    if (state === "interrupted") notes.push(note(wordsOfInterrupt(text, said)));
    if (finish === "length") notes.push(note("It stopped at the longest answer allowed."));
    if (this.#player.state === "suspended" && this.#answer.length) {
      notes.push(note("The browser held the sound back. Press play to hear it."));
    }
    if (problem) notes.push(problemView(problem, again, asText));
    if (timeline) {
      this.#way = this.#unfolding(timeline);
      notes.push(this.#way);
    }
    this.#notes.replaceChildren(...notes);
    this.update();
  }

  /** The figures, and behind them the chart. */
  #unfolding(timeline) {
    const line = el(
      "summary",
      {},
      figures(timeline, this.#speech),
      el("span", { class: "more" }, "Timeline"),
    );
    const way = el(
      "details",
      { class: "way", open: this.#newest && unfolded },
      line,
      timelineView(timeline, this.#order),
    );
    // A click, by key as well, and not "toggle", which tells of what the page itself folds too.
    line.addEventListener("click", () => {
      if (this.#newest) unfolded = !way.open;
    });
    return way;
  }

  #begin() {
    this.#playback = this.#player.begin(() => this.#ended());
    this.#watch();
  }

  #ended() {
    this.#wave.heardS = this.#playback.heardS; // where it stopped, all of it if it did not
    this.update();
    this.#onQuiet();
  }

  #toggle() {
    if (this.#player.state === "suspended") {
      this.#player.wake(); // the browser held it back, and lets it go now
      return;
    }
    if (this.#playing) {
      this.#playback.stop();
      return;
    }
    this.#begin();
    this.#playback.push(concat(this.#answer.chunks));
    this.#playback.complete();
    this.update();
  }

  /** Keep what moves by itself moving: the clock, and how far the sound has got. */
  #watch() {
    const step = () => {
      const waiting = !this.#answer.over;
      if (waiting) this.#showLive();
      if (this.#playing) {
        this.#wave.heardS = this.#playback.heardS;
        this.#showTime();
      }
      if (waiting || this.#playing) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  #showTime() {
    const { soundS } = this.#answer;
    const whole = clock(soundS, Math.ceil);
    this.#time.textContent = this.#playing ? `${clock(this.#playback.heardS)} / ${whole}` : whole;
    this.#canvas.setAttribute("aria-label", `Waveform of ${seconds(soundS)} of sound`);
  }

  #showLive() {
    const parts = [seconds(this.#elapsed())];
    if (this.#firstTextS !== null) parts.push(`first text ${seconds(this.#firstTextS)}`);
    if (this.#firstSoundS !== null) parts.push(`first sound ${seconds(this.#firstSoundS)}`);
    const underruns = this.#playback?.underruns ?? 0;
    if (underruns) parts.push(`${underruns} underrun${underruns > 1 ? "s" : ""}`);
    this.#live.textContent = parts.join(" · ");
  }

  #elapsed() {
    return (performance.now() - this.#began) / 1000;
  }

  #download() {
    const bytes = wavOf(concat(this.#answer.chunks), SERVER_RATE);
    const url = URL.createObjectURL(new Blob([bytes], { type: "audio/wav" }));
    el("a", { href: url, download: "antiphon-answer.wav" }).click();
    URL.revokeObjectURL(url);
  }
}

// Whether the newest answer's timeline is open: as the reader has left the last one.
let unfolded = matchMedia("(min-width: 48rem)").matches;

function note(words) {
  return el("p", { class: "note" }, words);
}

function wordsOfInterrupt(text, said) {
  if (!said) return "Interrupted before anything was said. It is not part of the conversation.";
  if (said.length < text.length) {
    return "Interrupted. The conversation goes on from what was said; what is pale was not heard.";
  }
  return "Interrupted. The conversation goes on from here.";
}

function problemView(problem, again, asText) {
  const { headline, detail, retryAfterS } = explain(problem);
  const button = repeating("Try again", again);
  if (retryAfterS) countDown(button, retryAfterS);
  return el(
    "div",
    { class: "problem", role: "alert" },
    el("p", { class: "headline" }, headline),
    detail ? el("p", { class: "detail" }, detail) : null,
    el("p", { class: "ways-on" }, button, asText ? repeating("Ask for text only", asText) : null),
  );
}

function repeating(words, repeat) {
  const button = el("button", { type: "button" }, words);
  button.addEventListener("click", () => {
    button.disabled = true; // it is asked once more below
    repeat();
  });
  return button;
}

/** The server says how long it makes no sense to ask again. */
function countDown(button, left) {
  button.disabled = left > 0;
  button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
  if (left > 0) setTimeout(() => countDown(button, left - 1), 1000);
}
