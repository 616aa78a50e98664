// The playground: puts the parts together.

import { Api, Problem } from "./api.js";
import { chat, chatBody, speak, speechBody, timelineOf, writeDown } from "./ask.js";
import { Composer } from "./composer.js";
import { Answer, Conversation, Question } from "./conversation.js";
import { announce, byId } from "./dom.js";
import { Player } from "./player.js";
import { abilities, Watch } from "./server.js";
import { apiKey, askForKey, Settings } from "./settings.js";
import { AnswerTurn, questionTurn, showHeard } from "./turns.js";
import { explain } from "./words.js";

const PICTURES =
  "This pipeline answers with pictures, which OpenAI's chat protocol does not carry. " +
  "Use it from Python: Omni(…).chat(…).";
const NO_KEY = "Without a key this server answers nothing. Load the page again to give one.";
const READ = "Ask, and read the answer while it is being made.";
const SLOW_MS = 3000; // of waiting for a beginning, until the server is asked how it is
const NOTHING = "This pipeline has neither a conversation nor speech that this page could offer.";

const api = new Api(apiKey);
const watch = new Watch(api);
const player = new Player();
const settings = new Settings();
const conversation = new Conversation();
const composer = new Composer({
  text: (text) => begin(composer.mode, new Question(text)),
  recorded: (samples) => begin("chat", new Question("", samples)),
  recording: () => interrupt(),
});

let card = null; // of the model; null until it is known
let can = null; // what its pipeline can do
let current = null; // the round whose request is under way
let latest = null; // the last one, whose sound may be heard still

async function open() {
  byId("interrupt").addEventListener("click", interrupt);
  byId("new").addEventListener("click", startAnew);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) interrupt();
  });
  watch.untilWell();
  await meet();
  composer.focus();
}

/** Learn what is served, with a key where one is asked for. */
async function meet() {
  for (;;) {
    try {
      card = await api.model();
      break;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 401) {
        if (!(await askForKey())) return notice(NO_KEY);
      } else if (error.status) return notice(explain(error).headline);
      else await watch.untilWell();
    }
  }
  can = abilities(card);
  byId("model").textContent = card.id;
  byId("description").textContent = card.antiphon.description;
  if (!can.speaks && !can.hasSpeech) byId("lead").textContent = READ;
  document.title = `${card.id} · Antiphon`;
  settings.fit(can);
  composer.fit(can);
  if (can.givesPictures) notice(PICTURES);
  else if (!can.hasChat && !can.hasSpeech) notice(NOTHING);
}

function notice(words) {
  byId("notice").hidden = false;
  byId("notice").textContent = words;
}

// --- one round ------------------------------------------------------------------------------

/** Ask or have spoken; what was under way is interrupted. `textOnly` is for this time. */
async function begin(kind, question, { textOnly = false } = {}) {
  interrupt();
  latest?.turn.fold();
  player.wake(); // now, while a key press or click allows it
  const values = { ...settings.values, textOnly: textOnly || settings.values.textOnly };
  const answer = new Answer();
  answer.textOnly = kind === "chat" && (values.textOnly || !can.speaks);
  const request =
    kind === "chat"
      ? chatBody(card.id, conversation.messages(values.system, question), values, can.speaks)
      : speechBody(card.id, question.text, values);
  if (kind === "chat") conversation.add(question, answer);
  const turn = new AnswerTurn(answer, player, {
    who: card.id,
    order: can.stages,
    hasWords: kind === "chat",
    onQuiet: refresh,
  });
  const again = (options) => {
    conversation.drop(answer);
    return begin(kind, question, options);
  };
  const aborter = new AbortController();
  const round = { kind, question, request, answer, turn, again, aborter, asText: null, over: false };
  const asked = questionTurn(question, kind);
  show(asked, turn.node);
  [current, latest] = [round, round];
  refresh();
  if (question.samples && can.writesDown && question.heard === null) {
    writeDown(api, card.id, question).then(() => keepingEnd(() => showHeard(asked, question)));
  }
  await conclude(round, await run(round));
}

/** The whole request; the problem that ended it, or null. */
async function run({ kind, request, answer, turn, aborter }) {
  const on = {
    text: () => keepingEnd(() => turn.text()),
    sound: (samples) => keepingEnd(() => turn.sound(samples)),
  };
  const waiting = () => answer.state === "waiting" && watch.untilWell(); // it may be asleep
  const slow = setTimeout(waiting, SLOW_MS);
  try {
    await (kind === "chat" ? chat : speak)(api, request, aborter.signal, answer, on);
    return null;
  } catch (error) {
    if (aborter.signal.aborted) return null;
    if (error instanceof Problem) return error;
    throw error;
  } finally {
    clearTimeout(slow);
  }
}

async function conclude(round, problem) {
  const { answer, turn, again } = round;
  if (current === round) current = null;
  if (problem?.status === 401 && (await askForKey())) {
    turn.node.previousElementSibling.remove(); // it is asked once more, and seen once
    turn.node.remove();
    return again();
  }
  if (problem) {
    answer.problem = problem;
    conversation.breakOff(answer, "failed", answer.soundS); // what has come is heard to its end
    // What broke amid an answer has the status of its beginning, 200.
    if (problem.status < 400 || problem.status >= 500) watch.untilWell();
    if (problem.code === "stage_died") await watch.look(); // which, decides what is offered
    if (offersText(round)) round.asText = () => again({ textOnly: true });
  } else if (answer.state !== "interrupted") {
    conversation.finish(answer);
  }
  round.over = true;
  keepingEnd(() => {
    turn.complete();
    turn.conclude(again, round.asText);
  });
  refresh();
  announce(wordsOfEnd(answer));
  if (!answer.timeline && !problem) await addTimeline(round);
}

/** Whether the same question would be answered without sound, by stages that run. */
function offersText({ kind, question, answer: { problem, textOnly } }) {
  if (problem?.code !== "stage_died" || kind !== "chat" || textOnly || !can.canChoose) return false;
  const needed = can.forText.filter((stage) => question.samples || !can.ears.includes(stage));
  return !watch.gone.some((stage) => needed.includes(stage));
}

/** Speech, and what was broken off, bring no timeline: the server is asked for it. */
async function addTimeline({ answer, turn, again }) {
  try {
    answer.timeline = await timelineOf(api, answer.id);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return; // the answer is good without
  }
  if (answer.timeline) keepingEnd(() => turn.conclude(again));
}

function wordsOfEnd({ state, text, said }) {
  if (state === "done") return text || "Spoken";
  return state === "interrupted" ? `Interrupted after: ${said || "nothing"}` : "No answer";
}

/** End what is recorded, asked or heard, at once. */
function interrupt() {
  if (composer.discard()) return;
  const round = current ?? latest;
  if (round && (current === round || round.turn.speaking)) {
    const { heardS } = round.turn;
    player.stop();
    conversation.breakOff(round.answer, "interrupted", heardS);
    current = null;
    round.aborter.abort();
    if (round.over) round.turn.conclude(round.again, round.asText); // else its end does
  }
  player.stop(); // what is heard again, too
  refresh();
}

function startAnew() {
  interrupt();
  conversation.clear();
  [current, latest] = [null, null];
  byId("turns").replaceChildren();
  byId("welcome").hidden = false;
  announce("New conversation");
  composer.focus();
}

// --- the page -------------------------------------------------------------------------------

function show(...turns) {
  byId("welcome").hidden = true;
  byId("turns").append(...turns);
  document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
}

/** Change the page and keep its end in view for a reader who is there. */
function keepingEnd(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

function refresh() {
  composer.busy = current !== null || (latest?.turn.speaking ?? false);
}

open();
