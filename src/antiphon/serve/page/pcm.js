// Samples and their forms: what the server sends, what it is sent, what is saved.

/** Samples per second of the server's `pcm16` and `pcm` (OpenAI's API). */
export const SERVER_RATE = 24000;
/** Samples per second of recordings: what speech models hear. */
export const RECORDING_RATE = 16000;

export function bytesOfBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function base64OfBytes(bytes) {
  let binary = "";
  const step = 0x8000; // apply() takes no more arguments than the stack holds
  for (let i = 0; i < bytes.length; i += step) {
    binary += String.fromCharCode.apply(null, bytes.subarray(i, i + step));
  }
  return btoa(binary);
}

/** Signed 16-bit little-endian samples of a stream whose pieces may end within a sample. */
export class Pcm16Reader {
  #odd = null; // the first half of a sample

  /** Samples, -1 to 1, that `bytes` complete. */
  read(bytes) {
    const whole = this.#odd === null ? bytes : prefixed(this.#odd, bytes);
    this.#odd = whole.length % 2 ? whole[whole.length - 1] : null;
    const view = new DataView(whole.buffer, whole.byteOffset, whole.length);
    const samples = new Float32Array(whole.length >> 1);
    for (let i = 0; i < samples.length; i += 1) samples[i] = view.getInt16(2 * i, true) / 32768;
    return samples;
  }
}

function prefixed(first, bytes) {
  const whole = new Uint8Array(bytes.length + 1);
  whole[0] = first;
  whole.set(bytes, 1);
  return whole;
}

/** The bytes of a WAV file: one channel, 16 bits. */
export function wavOf(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // length of the format
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true); // bytes per second
  view.setUint16(32, 2, true); // bytes per frame
  view.setUint16(34, 16, true); // bits per sample
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  for (let i = 0; i < samples.length; i += 1) {
    const clipped = Math.max(-1, Math.min(1, samples[i]));
    view.setInt16(44 + 2 * i, Math.round(clipped * 32767), true);
  }
  return new Uint8Array(view.buffer);
}

export function concat(chunks) {
  const joined = new Float32Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    joined.set(chunk, at);
    at += chunk.length;
  }
  return joined;
}

/** The same sound at another rate; the browser's own resampler does it. */
export async function resample(samples, from, to) {
  if (from === to) return samples;
  const context = new OfflineAudioContext(1, Math.ceil((samples.length * to) / from), to);
  const buffer = context.createBuffer(1, samples.length, from);
  buffer.copyToChannel(samples, 0);
  const source = new AudioBufferSourceNode(context, { buffer });
  source.connect(context.destination);
  source.start();
  return (await context.startRendering()).getChannelData(0);
}
