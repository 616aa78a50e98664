// The microphone.

import { concat, RECORDING_RATE, resample } from "./pcm.js";

/** Longest recording in seconds; then it ends by itself. */
export const LONGEST_S = 120;
const SHORTEST_S = 0.2;

/** Why this page cannot record, in words; null if it can. */
export function whyNot() {
  if (!isSecureContext) {
    return "Browsers give the microphone only to pages of this machine or over HTTPS.";
  }
  if (!navigator.mediaDevices?.getUserMedia || !globalThis.AudioWorkletNode) {
    return "This browser cannot record sound.";
  }
  return null;
}

/** One recording, from `start` to `stop` or `cancel`. */
export class Recording {
  #chunks = [];
  #length = 0; // samples
  #stream;
  #context;
  level = 0; // of the latest samples, 0 to 1

  /** Ask for the microphone and begin. Throws an Error whose message is for the reader. */
  static async start() {
    const recording = new Recording();
    try {
      await recording.#open();
    } catch (error) {
      recording.cancel();
      throw new Error(wordsFor(error));
    }
    return recording;
  }

  async #open() {
    this.#stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true },
    });
    this.#context = new AudioContext(); // at the microphone's own rate: not every browser converts
    await this.#context.audioWorklet.addModule("/page/recorder-worklet.js");
    const tap = new AudioWorkletNode(this.#context, "antiphon-tap");
    tap.port.onmessage = ({ data }) => this.#add(data);
    this.#context.createMediaStreamSource(this.#stream).connect(tap);
    tap.connect(this.#context.destination); // silent, but what leads nowhere may not be run
  }

  #add(samples) {
    if (this.seconds >= LONGEST_S) return; // a page in the background may not have noticed
    this.level = samples.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0);
    this.#chunks.push(samples);
    this.#length += samples.length;
  }

  get seconds() {
    return this.#context ? this.#length / this.#context.sampleRate : 0;
  }

  /** End it; the samples at RECORDING_RATE. Throws an Error, for the reader, if there are too few. */
  async stop() {
    const { seconds } = this;
    const rate = this.#context.sampleRate;
    this.cancel();
    if (seconds < SHORTEST_S) throw new Error("That was too short to hear. Record a little longer.");
    return resample(concat(this.#chunks), rate, RECORDING_RATE);
  }

  /** End it and let go of the microphone. */
  cancel() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    if (this.#context?.state !== "closed") this.#context?.close();
  }
}

function wordsFor(error) {
  switch (error.name) {
    case "NotAllowedError":
      return "The browser did not allow the microphone. Allow it for this page and try again.";
    case "NotFoundError":
      return "No microphone was found.";
    case "NotReadableError":
      return "The microphone is in use by another program.";
    default:
      return `The microphone did not start: ${error.message}`;
  }
}
