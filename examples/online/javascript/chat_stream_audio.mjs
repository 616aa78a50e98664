// Hear an answer while it is still being written. Node 18 or newer, no packages.
//
// The speech is raw: 16-bit little-endian samples of one channel, 24,000 a second. It goes to a
// file, or with --out - to standard output, for a player; the text goes to standard error.
//
//   antiphon serve                      # in another terminal
//   node chat_stream_audio.mjs "Why is the sky blue?"
//   node chat_stream_audio.mjs "Why is the sky blue?" --out - | aplay -r 24000 -f S16_LE

import { createWriteStream } from "node:fs";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { finished } from "node:stream/promises";
import { parseArgs } from "node:util";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    out: { type: "string", default: "answer.pcm" },
    url: { type: "string", default: "http://127.0.0.1:8000" },
    model: { type: "string", default: "voice" },
  },
});
const question = positionals[0] ?? "What is the capital of France?";

// Server-sent events: each is a line "data: {...}", the last one "data: [DONE]".
async function* events(response) {
  for await (const line of createInterface({ input: Readable.fromWeb(response.body) })) {
    if (!line.startsWith("data: ")) continue;
    if (line === "data: [DONE]") return;
    const event = JSON.parse(line.slice("data: ".length));
    if (event.error) throw new Error(event.error.message);
    yield event;
  }
  throw new Error("the answer was cut off");
}

async function play() {
  const began = performance.now();
  const response = await fetch(`${options.url}/v1/chat/completions`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Authorization: `Bearer ${process.env.ANTIPHON_API_KEY ?? "none"}`,
    },
    body: JSON.stringify({
      model: options.model,
      messages: [{ role: "user", content: question }],
      modalities: ["text", "audio"],
      audio: { voice: "alloy", format: "pcm16" }, // the one format for streams
      max_completion_tokens: 60,
      stream: true,
    }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);

  const out = options.out === "-" ? process.stdout : createWriteStream(options.out);
  let bytes = 0;
  let first;
  for await (const event of events(response)) {
    const audio = event.choices[0]?.delta.audio;
    if (audio?.transcript) process.stderr.write(audio.transcript);
    if (audio?.data) {
      first ??= performance.now() - began;
      const samples = Buffer.from(audio.data, "base64");
      bytes += samples.length;
      out.write(samples);
    }
  }
  if (out !== process.stdout) await finished(out.end());
  const seconds = (bytes / 2 / 24000).toFixed(1);
  console.error(`\n${seconds} s of speech, the first after ${(first / 1000).toFixed(2)} s`);
}

try {
  await play();
} catch (error) {
  console.error(`${options.url}: ${error.cause?.message || error.message}`);
  process.exitCode = 1;
}
