// The server's API, as any other client would call it.

/** A call that failed. `status` is 0 where there was no answer at all. */
export class Problem extends Error {
  constructor(message, { status = 0, code = null, retryAfterS = null } = {}) {
    super(message);
    this.name = "Problem";
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }
}

export class Api {
  #key;

  /** `key` gives the key to use, or null. */
  constructor(key) {
    this.#key = key;
  }

  /** The card of the one model that is served. */
  async model() {
    const { data } = await (await this.#call("/v1/models", {})).json();
    return data[0];
  }

  /** What the server says about itself; also where it says that it is not well. */
  async health() {
    const answer = await reach("/health", {});
    return answer.json();
  }

  /** Begin a chat: the id of the request, and its chunks as they arrive. */
  async chat(body, signal) {
    const answer = await this.#post("/v1/chat/completions", { ...body, stream: true }, signal);
    return { id: answer.headers.get("x-request-id"), chunks: chunksOf(answer.body) };
  }

  /** Begin to speak: the id of the request, and bytes of PCM as they arrive. */
  async speech(body, signal) {
    const answer = await this.#post("/v1/audio/speech", body, signal);
    return { id: answer.headers.get("x-request-id"), pieces: piecesOf(answer.body) };
  }

  /** What the bytes of a WAV file say. */
  async transcription(model, wav) {
    const form = new FormData();
    form.append("model", model);
    form.append("file", new Blob([wav], { type: "audio/wav" }), "question.wav");
    const answer = await this.#call("/v1/audio/transcriptions", { method: "POST", body: form });
    return (await answer.json()).text;
  }

  /** The timeline of a request that has ended; null if the server keeps none. */
  async timeline(id) {
    const { data } = await (await this.#call("/v1/antiphon/traces?limit=32", {})).json();
    if (!data.some((summary) => summary.id === id || summary.label === id)) return null;
    return (await this.#call(`/v1/antiphon/traces/${encodeURIComponent(id)}`, {})).json();
  }

  #post(path, body, signal) {
    const headers = { "content-type": "application/json" };
    return this.#call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  async #call(path, options) {
    const key = this.#key();
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const answer = await reach(path, { ...options, headers });
    if (!answer.ok) throw await problemOf(answer);
    return answer;
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("there was no answer", { code: "unreachable" });
  }
}

async function problemOf(answer) {
  const retryAfterS = Number(answer.headers.get("retry-after")) || null;
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return new Problem(error.message, { status: answer.status, code: error.code, retryAfterS });
  } catch {
    // Not the server itself but something before it, which has errors of its own form.
    return new Problem(answer.statusText || "no reason given", { status: answer.status, retryAfterS });
  }
}

async function* piecesOf(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("the connection broke", { code: "broken_off" });
  } finally {
    reader.cancel().catch(() => {}); // it may have ended already
  }
}

/** Server-sent events with JSON, up to `[DONE]`. An event that is an error is thrown. */
async function* chunksOf(body) {
  for await (const data of eventsOf(body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) {
      const { message, code } = chunk.error;
      throw new Problem(message, { status: 200, code });
    }
    yield chunk;
  }
  throw new Problem("the answer has no end", { code: "broken_off" });
}

/** The data of each event; https://html.spec.whatwg.org/multipage/server-sent-events.html */
async function* eventsOf(body) {
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for await (const piece of piecesOf(body)) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}
