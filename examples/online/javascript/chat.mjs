// Ask a question and get the answer in text and speech. Node 18 or newer, no packages.
//
//   antiphon serve                      # in another terminal
//   node chat.mjs "What is the capital of France?" --out answer.wav

import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    out: { type: "string", default: "answer.wav" },
    url: { type: "string", default: "http://127.0.0.1:8000" },
    model: { type: "string", default: "voice" },
  },
});
const question = positionals[0] ?? "What is the capital of France?";

async function ask() {
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
      audio: { voice: "alloy", format: "wav" },
      max_completion_tokens: 60,
    }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message);
  const { transcript, data } = answer.choices[0].message.audio;
  console.log(transcript);
  await writeFile(options.out, Buffer.from(data, "base64"));
  console.log(`The speech is in ${options.out}.`);
}

try {
  await ask();
} catch (error) {
  console.error(`${options.url}: ${error.cause?.message || error.message}`);
  process.exitCode = 1;
}
