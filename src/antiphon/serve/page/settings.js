// What the reader can set. Kept for this tab only, the key above all: nothing is left behind.

import { byId } from "./dom.js";

const SETTINGS = "antiphon.settings";
const KEY = "antiphon.key";
const DEFAULTS = {
  textOnly: false,
  system: "",
  voice: "",
  maxTokens: null, // null: as the pipeline has it
  temperature: null,
};

export function apiKey() {
  return sessionStorage.getItem(KEY);
}

export class Settings {
  #values;
  #dialog = byId("settings");
  #form = byId("settings-form");

  constructor() {
    this.#values = { ...DEFAULTS, ...JSON.parse(sessionStorage.getItem(SETTINGS) ?? "{}") };
    byId("open-settings").addEventListener("click", () => this.#open());
    this.#form.addEventListener("submit", (event) => this.#save(event));
    byId("close-settings").addEventListener("click", () => this.#dialog.close());
  }

  /** Only what the pipeline has is shown. */
  fit({ hasChat, canChoose, takesVoice }) {
    byId("field-system").hidden = !hasChat;
    byId("field-text-only").hidden = !canChoose;
    byId("field-voice").hidden = !takesVoice;
  }

  get values() {
    return this.#values;
  }

  #open() {
    const { textOnly, system, voice, maxTokens, temperature } = this.#values;
    const fields = this.#form.elements;
    fields.textOnly.checked = textOnly;
    fields.system.value = system;
    fields.voice.value = voice;
    fields.maxTokens.value = maxTokens ?? "";
    fields.temperature.value = temperature ?? "";
    this.#dialog.showModal();
  }

  #save(event) {
    event.preventDefault();
    const fields = this.#form.elements;
    this.#values = {
      textOnly: fields.textOnly.checked,
      system: fields.system.value.trim(),
      voice: fields.voice.value.trim(),
      maxTokens: numberIn(fields.maxTokens),
      temperature: numberIn(fields.temperature),
    };
    sessionStorage.setItem(SETTINGS, JSON.stringify(this.#values));
    this.#dialog.close();
  }
}

function numberIn(field) {
  return field.value === "" ? null : field.valueAsNumber;
}

/** Ask for the API key; whether one was given. */
export function askForKey() {
  const dialog = byId("key");
  const field = byId("key-value");
  byId("key-again").hidden = apiKey() === null;
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, field.value.trim());
      dialog.close("given");
    };
    byId("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => resolve(dialog.returnValue === "given");
  });
}
