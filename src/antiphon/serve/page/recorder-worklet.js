// Runs on the audio thread: passes on what the microphone hears, mixed to one channel.

const BATCH = 2048; // samples of one message, so that there are not hundreds a second

class Tap extends AudioWorkletProcessor {
  #batch = new Float32Array(BATCH);
  #filled = 0;

  process([input]) {
    for (let i = 0; i < (input[0]?.length ?? 0); i += 1) {
      const sum = input.reduce((total, channel) => total + channel[i], 0);
      this.#batch[this.#filled] = sum / input.length;
      this.#filled += 1;
      if (this.#filled === BATCH) this.#send();
    }
    return true;
  }

  #send() {
    this.port.postMessage(this.#batch.slice(0, this.#filled));
    this.#filled = 0;
  }
}

registerProcessor("antiphon-tap", Tap);
