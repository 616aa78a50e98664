// Playing sound that is still arriving.

import { SERVER_RATE } from "./pcm.js";

const LEAD_S = 0.03; // from deciding to play until the first sample, so that it is not late

/** The page's one loudspeaker: what begins to play ends what played before. */
export class Player {
  #context = null;
  #current = null;

  /** Open the loudspeaker; browsers allow it while a click or key press is being handled. */
  wake() {
    // At the sound's own rate: every chunk being resampled by itself would click at its edges.
    this.#context ??= new AudioContext({ sampleRate: SERVER_RATE, latencyHint: "interactive" });
    if (this.#context.state !== "running") this.#context.resume();
  }

  /** "running", or why nothing is heard. */
  get state() {
    return this.#context === null ? "closed" : this.#context.state;
  }

  /** Start playing nothing yet: chunks are pushed to what is returned. */
  begin(onEnd = () => {}) {
    this.wake();
    this.stop();
    this.#current = new Playback(this.#context, onEnd);
    return this.#current;
  }

  stop() {
    this.#current?.stop();
    this.#current = null;
  }
}

/** One answer being heard. Chunks are scheduled on the audio clock, each exactly behind the last. */
class Playback {
  underruns = 0;
  underrunS = 0; // silence where sound should have been
  over = false;
  #context;
  #onEnd;
  #sources = new Set();
  #spans = []; // {start, duration}: on the context's clock, seconds
  #next = null; // when the next chunk is due; null: nothing has been played
  #complete = false; // no more chunks will come

  constructor(context, onEnd) {
    this.#context = context;
    this.#onEnd = onEnd;
  }

  /** Play these samples (-1 to 1, at SERVER_RATE) behind all others. */
  push(samples) {
    if (this.over || samples.length === 0) return;
    const buffer = this.#context.createBuffer(1, samples.length, SERVER_RATE);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#context.destination);
    source.onended = () => this.#ended(source);
    this.#sources.add(source);
    const start = this.#due();
    source.start(start);
    this.#spans.push({ start, duration: buffer.duration });
    this.#next = start + buffer.duration;
  }

  /** Say that no more will come. */
  complete() {
    this.#complete = true;
    if (this.#sources.size === 0) this.#finish();
  }

  /** Silence, at once. */
  stop() {
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
    }
    this.#heardAtStop = this.heardS;
    this.#sources.clear();
    this.#finish();
  }

  #heardAtStop = null;

  /** Seconds of the sound that have been heard. */
  get heardS() {
    if (this.#heardAtStop !== null) return this.#heardAtStop;
    const now = this.#context.currentTime;
    return this.#spans.reduce(
      (sum, { start, duration }) => sum + Math.max(0, Math.min(duration, now - start)),
      0,
    );
  }

  #due() {
    const soonest = this.#context.currentTime + LEAD_S;
    if (this.#next === null) return soonest;
    if (this.#next >= this.#context.currentTime) return this.#next;
    this.underruns += 1;
    this.underrunS += soonest - this.#next;
    return soonest;
  }

  #ended(source) {
    this.#sources.delete(source);
    if (this.#complete && this.#sources.size === 0) this.#finish();
  }

  #finish() {
    if (this.over) return;
    this.over = true;
    this.#onEnd();
  }
}
