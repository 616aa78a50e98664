// What is known of the server: its pipeline, and whether it serves.

import { byId, el } from "./dom.js";
import { name } from "./words.js";

const POLL_MS = 1000; // while it is not well

/** What the pipeline can do, from its card. */
export function abilities(card) {
  const { entries, stages, edges } = card.antiphon;
  const { chat, speech, transcribe } = entries;
  const gives = (kind) => chat?.outputs.includes(kind) ?? false;
  const params = [...(chat?.params ?? []), ...(speech?.params ?? [])];
  return {
    hasChat: Boolean(chat) && (gives("text") || gives("audio")) && !gives("image"),
    givesPictures: Boolean(chat) && gives("image"),
    hears: chat?.inputs.includes("audio") ?? false,
    speaks: gives("audio"),
    hasSpeech: Boolean(speech),
    writesDown: Boolean(transcribe),
    canChoose: gives("text") && gives("audio"),
    takesVoice: params.includes("speaker"),
    stages: stages.map((stage) => stage.name),
    ears: stages.filter((stage) => stage.output === "transcript").map((stage) => stage.name),
    forText: leadingTo(
      stages.filter((stage) => stage.output === "text").map((stage) => stage.name),
      edges,
    ),
  };
}

/** These stages and all that they hear from. */
function leadingTo(names, edges) {
  const found = new Set(names); // grows while it is gone through
  for (const stage of found) {
    edges.filter((edge) => edge.consumer === stage).forEach((edge) => found.add(edge.producer));
  }
  return [...found];
}

/** Watches `/health`, and shows it. */
export class Watch {
  gone = []; // stages that are not running
  #api;
  #watching = null; // resolves when everything serves
  #line = byId("health");
  #stages = byId("stages");

  constructor(api) {
    this.#api = api;
  }

  /** Look now, and again until everything serves; resolves then. */
  untilWell() {
    this.#watching ??= this.#poll();
    return this.#watching;
  }

  async #poll() {
    while (!(await this.look())) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    this.#watching = null;
  }

  /** Look once; whether everything serves. */
  async look() {
    let health;
    try {
      health = await this.#api.health();
    } catch {
      this.#show("gone", "Not reachable", {});
      return false;
    }
    const { status, stages = {} } = health;
    this.gone = Object.keys(stages).filter((stage) => stages[stage].state === "gone");
    this.#show(status, STATUS[status] ?? "Not everything works", stages);
    return health.status === "ok";
  }

  #show(status, words, stages) {
    this.#line.dataset.status = status;
    if (this.#line.textContent !== words) this.#line.textContent = words; // it is read aloud
    byId("starting").hidden = status === "ok";
    byId("starting-title").textContent = HEADLINES[status] ?? HEADLINES.degraded;
    this.#stages.replaceChildren(...Object.entries(stages).map(stageLine));
  }
}

const STATUS = {
  ok: "Ready",
  starting: "Starting",
  draining: "Shutting down",
  sleeping: "Sleeping",
};

const HEADLINES = {
  sleeping: "The server sleeps; calls wait until it is woken.",
  starting: "The server is starting.",
  draining: "The server is shutting down.",
  degraded: "A part of the server is not working.",
  gone: "The server cannot be reached. Trying again…",
};

function stageLine([stage, { state, replicas }]) {
  const reason = replicas.find((replica) => replica.reason)?.reason;
  return el(
    "li",
    { "data-state": state },
    el("span", { class: "stage-name" }, name(stage)),
    el("span", { class: "stage-state" }, reason ? `${state}: ${reason}` : state),
  );
}
