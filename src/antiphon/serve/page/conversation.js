// What has been said, and what of it the model is told again.

import { base64OfBytes, RECORDING_RATE, SERVER_RATE, wavOf } from "./pcm.js";

const MOST_CLIPS = 16; // recordings in one request, this one included
const USUAL_PACE = 15; // characters of speech a second, until an answer has shown its own

/** Something the reader typed or recorded. */
export class Question {
  heard = null; // what a recording says, once the server has written it down
  writing = null; // resolves when that is done
  /** `samples` at RECORDING_RATE, or null. */
  constructor(text, samples = null) {
    this.text = text;
    this.samples = samples;
  }

  get seconds() {
    return this.samples ? this.samples.length / RECORDING_RATE : 0;
  }

  /** As the API has it in later turns: a recording that was written down is not sent again. */
  get recalled() {
    return this.heard === null ? this.message : { role: "user", content: this.heard };
  }

  /** As the API has it. */
  get message() {
    if (!this.samples) return { role: "user", content: this.text };
    const data = base64OfBytes(wavOf(this.samples, RECORDING_RATE));
    const sound = { type: "input_audio", input_audio: { data, format: "wav" } };
    const text = this.text ? [{ type: "text", text: this.text }] : [];
    return { role: "user", content: [sound, ...text] };
  }
}

/** An answer that grows. `said` is what of its text counts as said, and so goes into the history. */
export class Answer {
  id = null; // of the request, at the server
  text = "";
  chunks = []; // of samples at SERVER_RATE
  length = 0; // samples
  state = "waiting"; // streaming, done, interrupted, failed
  said = "";
  finish = null;
  timeline = null;
  problem = null;

  get soundS() {
    return this.length / SERVER_RATE;
  }

  get over() {
    return this.state !== "waiting" && this.state !== "streaming";
  }

  addText(text) {
    this.state = "streaming";
    this.text += text;
  }

  addSound(samples) {
    this.state = "streaming";
    this.chunks.push(samples);
    this.length += samples.length;
  }
}

export class Conversation {
  #rounds = []; // [question, answer]
  #pace = USUAL_PACE;

  add(question, answer) {
    this.#rounds.push([question, answer]);
  }

  drop(answer) {
    this.#rounds = this.#rounds.filter(([, given]) => given !== answer);
  }

  clear() {
    this.#rounds = [];
  }

  /** All messages with `question` as the last. Left out are questions that got no answer, and the
   * oldest rounds if there are more recordings than a request may have. */
  messages(system, question) {
    const answered = this.#rounds.filter(([, answer]) => answer.said);
    const recorded = answered.filter(([asked]) => asked.samples && asked.heard === null);
    const oldest = answered.indexOf(recorded.at(-MOST_CLIPS)); // -1 where all fit
    const rounds = recorded.length < MOST_CLIPS ? answered : answered.slice(oldest + 1);
    return [
      ...(system ? [{ role: "system", content: system }] : []),
      ...rounds.flatMap(([asked, { said }]) => [asked.recalled, { role: "assistant", content: said }]),
      question.message,
    ];
  }

  /** The answer came to its end. */
  finish(answer) {
    answer.state = "done";
    answer.said = answer.text;
    if (answer.soundS > 1 && answer.text) this.#pace = answer.text.length / answer.soundS;
  }

  /** The answer ended early, as "interrupted" or "failed", after `heardS` seconds of its sound.
   *
   * Text comes ahead of the sound, and does not say when it is heard: how far the voice had got is
   * reckoned from the time, to the end of a word.
   */
  breakOff(answer, state, heardS) {
    const complete = answer.state === "done";
    answer.state = state;
    if (answer.chunks.length === 0) {
      // Nothing was going to be heard, or nothing was heard yet.
      answer.said = answer.textOnly ? answer.text : "";
      return;
    }
    const pace = complete ? answer.text.length / answer.soundS : this.#pace;
    answer.said = upToWord(answer.text, heardS * pace);
  }
}

function upToWord(text, characters) {
  if (characters >= text.length) return text;
  const cut = text.slice(0, Math.round(characters) + 1);
  return cut.slice(0, Math.max(0, cut.search(/\s\S*$/)));
}
