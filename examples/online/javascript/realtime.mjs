// Talk with the server over a WebSocket, and interrupt it. No packages: Node 22 or newer has
// WebSocket, Node 20 has it with a flag. In a browser the same lines work.
//
// A question is sent as sound, as a microphone would give it. When the answer has been heard for a
// second it is interrupted and something else is asked, in text; that answer is heard to its end.
//
//   antiphon serve                      # in another terminal
//   node realtime.mjs                   # Node 20: node --experimental-websocket realtime.mjs

import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    out: { type: "string", default: "answer.pcm" },
    url: { type: "string", default: "http://127.0.0.1:8000" },
    model: { type: "string", default: "voice" },
  },
});
const key = process.env.ANTIPHON_API_KEY ?? "none";
const BYTES_PER_SECOND = 2 * 24000; // 16-bit samples, in both directions

// The question as sound: the server speaks it.
async function spoken(input) {
  const response = await fetch(`${options.url}/v1/audio/speech`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
    body: JSON.stringify({ model: options.model, voice: "alloy", input, response_format: "pcm" }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  return Buffer.from(await response.arrayBuffer());
}

async function connect() {
  const address = new URL(`${options.url}/v1/realtime?model=${encodeURIComponent(options.model)}`);
  address.protocol = address.protocol.replace("http", "ws");
  // A WebSocket has no headers of its own: the key goes with the protocols, as at OpenAI.
  const socket = new WebSocket(address, ["realtime", `openai-insecure-api-key.${key}`]);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error("the WebSocket was refused"));
  });
  return socket;
}

// As a microphone: piece after piece, then `commit` when the speaker has stopped.
function say(send, sound) {
  const piece = BYTES_PER_SECOND / 10;
  for (let start = 0; start < sound.length; start += piece) {
    const audio = sound.subarray(start, start + piece).toString("base64");
    send({ type: "input_audio_buffer.append", audio });
  }
  send({ type: "input_audio_buffer.commit" });
}

function write(send, text) {
  const content = [{ type: "input_text", text }];
  send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
}

// Ask for an answer; its samples, when it is over or has been interrupted.
function answer(socket, send, interruptAfterSeconds = Infinity) {
  const heard = [];
  let seconds = 0;
  let interrupted = false;
  send({ type: "response.create" });
  return new Promise((resolve, reject) => {
    socket.onclose = () => reject(new Error("the server has closed the connection"));
    socket.onmessage = (message) => {
      const event = JSON.parse(message.data);
      switch (event.type) {
        case "conversation.item.input_audio_transcription.completed":
          console.log(`Heard: ${event.transcript.trim()}`);
          break;
        case "response.output_audio_transcript.delta":
          process.stdout.write(event.delta);
          break;
        case "response.output_audio.delta":
          heard.push(Buffer.from(event.delta, "base64"));
          seconds += heard.at(-1).length / BYTES_PER_SECOND;
          if (seconds >= interruptAfterSeconds && !interrupted) {
            interrupted = true;
            send({ type: "response.cancel" });
            // The model forgets what was not heard of it.
            send({
              type: "conversation.item.truncate",
              item_id: event.item_id,
              content_index: 0,
              audio_end_ms: 1000 * interruptAfterSeconds,
            });
          }
          break;
        case "response.done":
          console.log(`\n[${event.response.status}, ${seconds.toFixed(1)} s of speech]`);
          resolve(Buffer.concat(heard));
          break;
        case "error":
          reject(new Error(event.error.message));
      }
    };
  });
}

async function talk() {
  if (typeof WebSocket === "undefined") {
    throw new Error("this Node has no WebSocket: start it with --experimental-websocket");
  }
  const question = await spoken("Please tell me a long story about the sea.");
  const socket = await connect();
  const send = (event) => socket.send(JSON.stringify(event));
  try {
    send({
      type: "session.update",
      session: {
        type: "realtime",
        output_modalities: ["audio"],
        audio: {
          // The server does not detect when a speaker stops: `commit` says it.
          input: { transcription: { model: options.model }, turn_detection: null },
          output: { voice: "alloy" },
        },
      },
    });
    say(send, question);
    await answer(socket, send, 1);
    write(send, "What is the capital of France?");
    await writeFile(options.out, await answer(socket, send));
    console.log(`The last answer is in ${options.out}: 16-bit samples, 24,000 a second.`);
  } finally {
    socket.onclose = null;
    socket.close();
  }
}

try {
  await talk();
} catch (error) {
  console.error(`${options.url}: ${error.cause?.message || error.message}`);
  process.exitCode = 1;
}
