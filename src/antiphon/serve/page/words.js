// Numbers and errors in plain words.

/** Seconds as people read them; "–" for what did not happen. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return "0 ms";
  if (value < 0.1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

/** Minutes and seconds of a sound, as on a player. */
export function clock(value) {
  const whole = Math.floor(value);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  if (value < 1 << 20) return `${(value / 1024).toFixed(1)} KiB`;
  return `${(value / (1 << 20)).toFixed(1)} MiB`;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** A name for people: `code2wav` stays, `kv_cache` becomes "kv cache". */
export function name(identifier) {
  return identifier.replaceAll("_", " ");
}

function sentence(message) {
  const text = message.trim();
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// By the code of the error; what is not here is told by its status.
const BY_CODE = new Map([
  ["server_starting", "The server is still starting."],
  ["server_draining", "The server is shutting down and takes no new questions."],
  ["server_stopped", "The server has been stopped."],
  ["input_too_long", "This is too long for the model. Shorten it, or start a new conversation."],
  ["empty_input", "There is nothing to answer in this."],
  ["stage_died", "A part of the server stopped while it worked on this."],
  ["stage_gone", "A part of the server stopped while it worked on this."],
  ["too_many_connections", "More people than the server can serve are using it right now."],
]);

const BY_STATUS = new Map([
  [0, "The server cannot be reached. It may have been stopped, or the network is down."],
  [401, "The server asks for an API key, and this one is not right."],
  [403, "The server does not take calls from a page at this address."],
  [408, "The question took too long to arrive."],
  [413, "This is larger than the server accepts."],
  [429, "The server has as much to do as it can take."],
  [503, "The server cannot answer right now."],
  [504, "The server did not finish in the time allowed."],
]);

/** What went wrong, for the reader: one sentence, what the server said, and whether to try again. */
export function explain(problem) {
  const { status, code, message, retryAfterS } = problem;
  const known = BY_CODE.get(code) ?? BY_STATUS.get(status);
  const brokeOff = status === 0 && message !== "the server does not answer";
  const [headline, detail] = brokeOff || !known ? [sentence(message), null] : [known, message];
  return { headline, detail: detail && status !== 0 ? sentence(detail) : null, retryAfterS };
}
