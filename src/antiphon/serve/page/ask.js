// One request: from what was asked to an answer that grows.

import { Problem } from "./api.js";
import { bytesOfBase64, Pcm16Reader, RECORDING_RATE, wavOf } from "./pcm.js";

// OpenAI's API asks for a voice; this is whoever speaks where nobody is named.
const ANY_VOICE = "default";

/** The body of a chat with these messages. */
export function chatBody(model, messages, settings, speaks) {
  const sound = speaks && !settings.textOnly;
  return {
    model,
    messages,
    modalities: sound ? ["text", "audio"] : ["text"],
    ...(sound ? { audio: { voice: settings.voice || ANY_VOICE, format: "pcm16" } } : {}),
    ...(settings.maxTokens === null ? {} : { max_completion_tokens: settings.maxTokens }),
    ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
    timeline: true, // this server's own: what the request went through, in the last chunk
  };
}

export function speechBody(model, text, settings) {
  return { model, input: text, voice: settings.voice || ANY_VOICE, response_format: "pcm" };
}

/** Fill `answer` from a chat. `on` is told of every piece: `on.text()`, `on.sound(samples)`. */
export async function chat(api, body, signal, answer, on) {
  const { id, chunks } = await api.chat(body, signal);
  const reader = new Pcm16Reader();
  answer.id = id;
  for await (const chunk of chunks) {
    answer.timeline = chunk.antiphon?.timeline ?? answer.timeline;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    answer.finish = choice.finish_reason ?? answer.finish;
    const { content, audio } = choice.delta ?? {};
    const text = content ?? audio?.transcript;
    if (text) {
      answer.addText(text);
      on.text();
    }
    if (audio?.data) hear(answer, on, reader.read(bytesOfBase64(audio.data)));
  }
}

/** Fill `answer` with the sound of a text that is spoken as it is. */
export async function speak(api, body, signal, answer, on) {
  const { id, pieces } = await api.speech(body, signal);
  const reader = new Pcm16Reader();
  answer.id = id;
  for await (const bytes of pieces) hear(answer, on, reader.read(bytes));
}

/** Have a recorded question written down, once: it becomes `question.heard`. What cannot be written
 * down now stays a recording. */
export function writeDown(api, model, question) {
  question.writing ??= written(api, model, question);
  return question.writing;
}

async function written(api, model, question) {
  try {
    const text = await api.transcription(model, wavOf(question.samples, RECORDING_RATE));
    question.heard = text.trim() || null;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    question.writing = null; // may be tried with the next attempt
  }
}

function hear(answer, on, samples) {
  if (samples.length === 0) return;
  answer.addSound(samples);
  on.sound(samples);
}

/** The timeline of a request that told none itself, once every stage has let go of it; or null. */
export async function timelineOf(api, id) {
  for (let attempt = 0; id && attempt < 5; attempt += 1) {
    const found = await api.timeline(id);
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 200 * (attempt + 1)));
  }
  return null;
}
