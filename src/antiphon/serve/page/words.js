// Numbers and errors in plain words.

/** Seconds as people read them; "–" for what did not happen. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return value > 0 ? "< 1 ms" : "0 s";
  if (value < 0.1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

/** Minutes and seconds, as on a player; whole seconds that have begun with `round` Math.ceil. */
export function clock(value, round = Math.floor) {
  const whole = round(value);
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

// Codes whose errors mean something else where the answer has not begun: its status is an error's.
const BEFORE_ANSWER = new Map([["stage_died", "A part of the server that this needs is not running."]]);

function sentence(message) {
  const text = message.trim();
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// By the code of the error; what is not here is told by its status.
const BY_CODE = new Map([
  ["unreachable", "The server cannot be reached. It may have been stopped, or the network is down."],
  ["broken_off", "The connection broke while the answer was coming."],
  ["server_starting", "The server is still starting."],
  ["server_draining", "The server is shutting down and takes no new questions."],
  ["server_stopped", "The server has been stopped."],
  ["input_too_long", "This is too long for the model. Shorten it, or start a new conversation."],
  ["empty_input", "There is nothing to answer in this."],
  ["stage_died", "A part of the server stopped while it worked on this."],
  ["stage_step", "A part of the server failed while it worked on this."],
  ["too_many_connections", "More people than the server can serve are using it right now."],
]);

const BY_STATUS = new Map([
  [401, "The server asks for an API key, and this one is not right."],
  [403, "The server does not take calls from a page at this address."],
  [408, "The question took too long to arrive."],
  [413, "This is larger than the server accepts."],
  [429, "The server has as much to do as it can take."],
  [503, "The server cannot answer right now."],
  [504, "The server did not finish in the time allowed."],
]);

/** What went wrong, for the reader: a headline, what the server said if that is more, and how many
 * seconds to wait before it is tried again (null: not known). */
export function explain({ status, code, message, retryAfterS }) {
  const early = status >= 400 ? BEFORE_ANSWER.get(code) : undefined;
  const headline = early ?? BY_CODE.get(code) ?? BY_STATUS.get(status);
  if (!headline) return { headline: sentence(message), detail: null, retryAfterS };
  const saysMore = status !== 0 && !code?.startsWith("server_");
  return { headline, detail: saysMore ? sentence(message) : null, retryAfterS };
}
