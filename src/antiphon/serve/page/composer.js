// Where the reader types and records.

import { announce, byId } from "./dom.js";
import { LONGEST_S, Recording, whyNot } from "./recorder.js";
import { clock } from "./words.js";

const PLACEHOLDERS = { chat: "Ask something", speech: "Write what is to be spoken" };

export class Composer {
  #form = byId("ask");
  #field = byId("text");
  #mic = byId("record");
  #recording = null;
  #starting = false; // the browser is asking whether the microphone may be used
  #on;

  /** `on.text(text)`, `on.recorded(samples)`, `on.recording()`: one is about to begin. */
  constructor(on) {
    this.#on = on;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#field.addEventListener("keydown", (event) => this.#key(event));
    this.#field.addEventListener("input", () => this.#grow());
    this.#mic.addEventListener("click", () => this.#toggle());
    byId("modes").addEventListener("change", () => this.#fitMode());
  }

  /** "chat" or "speech". */
  get mode() {
    return this.#form.elements.mode.value;
  }

  /** Offer what the pipeline can. */
  fit({ hasChat, hasSpeech, hears }) {
    byId("modes").hidden = !(hasChat && hasSpeech);
    this.#form.elements.mode.value = hasSpeech && !hasChat ? "speech" : "chat";
    const usable = hasChat || hasSpeech;
    this.#field.disabled = !usable;
    byId("send").disabled = !usable;
    const reason = hears ? whyNot() : hasChat ? "This pipeline does not hear." : null;
    this.#mic.hidden = !hasChat;
    this.#mic.disabled = !hears || reason !== null;
    byId("no-microphone").textContent = reason ?? "";
    this.#fitMode();
  }

  /** Whether there is something to interrupt. */
  set busy(busy) {
    byId("interrupt").hidden = !busy;
  }

  focus() {
    this.#field.focus();
  }

  /** Drop a recording that is under way; whether there was one. */
  discard() {
    if (!this.#recording) return false;
    this.#recording.cancel();
    this.#showRecording(null);
    announce("Recording discarded");
    return true;
  }

  #fitMode() {
    this.#field.placeholder = PLACEHOLDERS[this.mode];
    byId("text-label").textContent = PLACEHOLDERS[this.mode];
    byId("send-words").textContent = this.mode === "speech" ? "Speak" : "Send";
    this.#form.dataset.mode = this.mode;
  }

  #key(event) {
    // While an input method composes a character, Enter accepts it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }

  #send() {
    const text = this.#field.value.trim();
    if (!text || this.#field.disabled) return;
    this.discard();
    this.#field.value = "";
    this.#grow();
    this.#on.text(text);
  }

  #grow() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }

  async #toggle() {
    if (this.#starting) return;
    this.#say("");
    try {
      if (this.#recording) await this.#finish();
      else await this.#begin();
    } catch (error) {
      this.#showRecording(null);
      this.#say(error.message);
    }
  }

  async #begin() {
    this.#on.recording();
    this.#starting = true;
    try {
      this.#showRecording(await Recording.start());
    } finally {
      this.#starting = false;
    }
    announce("Recording");
    this.#follow(this.#recording);
  }

  async #finish() {
    const recording = this.#recording;
    this.#showRecording(null);
    this.#on.recorded(await recording.stop());
  }

  /** Show how long it is and how loud, until it ends. */
  #follow(recording) {
    if (this.#recording !== recording) return;
    byId("recording-time").textContent = clock(recording.seconds);
    byId("level").value = Math.sqrt(recording.level); // nearer to what an ear makes of it
    if (recording.seconds >= LONGEST_S) this.#toggle();
    else requestAnimationFrame(() => this.#follow(recording));
  }

  #showRecording(recording) {
    this.#recording = recording;
    const on = recording !== null;
    this.#mic.setAttribute("aria-pressed", on);
    this.#mic.setAttribute("aria-label", on ? "Send the recording" : "Record a question");
    byId("recording").hidden = !on;
  }

  #say(words) {
    byId("composer-problem").textContent = words;
  }
}
