// A request's way through the stages, drawn from the timeline that the server kept of it.
//
// A row per stage, in it a bar per part of the request: waiting for input, queued, running. A row
// per edge between the stages that it connects. Everything is in a table as well.

import { el, span } from "./dom.js";
import { bytes, count, name, seconds } from "./words.js";

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600];
const TICKS = 6; // at most
const AUDIBLE_S = 0.1; // of silence; a browser's own hiccups are shorter

/** The chart and its table. `order` is the pipeline's order of stages. */
export function timelineView(timeline, order) {
  const stages = order.filter((stage) => timeline.stages.some((unit) => unit.stage === stage));
  const end = Math.max(timeline.total_s, 0.001);
  const rows = stages.flatMap((stage) => [
    ...edgeRows(timeline, stage, end),
    stageRow(timeline, stage, end),
  ]);
  return el(
    "div",
    { class: "timeline" },
    el(
      "div",
      { class: "chart", role: "img", "aria-label": summary(timeline, stages) },
      milestones(timeline, end),
      ...rows,
      arrivals(timeline, end),
      axis(end),
    ),
    legend(),
    el("details", { class: "table" }, el("summary", {}, "As a table"), tables(timeline, stages)),
  );
}

/** What the listener and the reader had of it, as terms and values; only what there was. `heard` is
 * how it was played here, or null. */
export function figures(timeline, heard) {
  const { ttft_s, ttfa_s, rtf, playback, total_s } = timeline;
  const found = [];
  if (ttft_s !== null) {
    found.push(["First text", "TTFT: from the request to the first text", seconds(ttft_s)]);
  }
  if (ttfa_s !== null) {
    found.push(["First sound", "TTFA: from the request to the first sound", seconds(ttfa_s)]);
  }
  found.push(["Whole answer", "from the request to its end", seconds(total_s)]);
  if (rtf !== null) {
    const hint = "RTF: seconds of work for a second of sound; below 1 is faster than speech";
    found.push(["Real-time factor", hint, rtf.toFixed(2)]);
  }
  if (playback) found.push(["Continuity", "what a listener hears", continuity(playback)]);
  if (heard && wasMissed(heard, playback)) {
    const hint = "silences in this page where sound was due";
    const value = `${count(heard.underruns, "underrun")}, ${seconds(heard.underrunS)} of silence`;
    const where = isGapless(playback) ? " on the way from the server" : "";
    found.push(["Heard here", hint, value + where]);
  }
  return el(
    "span",
    { class: "figures" },
    ...found.flatMap(([term, hint, value]) => [
      el(
        "span",
        { class: "figure", title: hint },
        el("span", { class: "term" }, term),
        " ",
        el("span", { class: "value" }, value),
      ),
      " ",
    ]),
  );
}

/** Whether silence here is worth a word: the server reports gaps too, or it was long enough to hear. */
function wasMissed({ underruns, underrunS }, playback) {
  return underruns > 0 && (!isGapless(playback) || underrunS > AUDIBLE_S);
}

function isGapless(playback) {
  return playback?.gaps === 0;
}

function continuity({ gaps, continuous, worst_underrun_s }) {
  if (gaps === 0 && worst_underrun_s === 0) return "no gap";
  if (continuous) return `no gap over ${seconds(worst_underrun_s)}`;
  return `${count(gaps, "gap")}, up to ${seconds(worst_underrun_s)}`;
}

function summary(timeline, stages) {
  const { total_s, ttft_s, ttfa_s } = timeline;
  const parts = [`Timeline over ${seconds(total_s)} through ${stages.map(name).join(", ")}`];
  if (ttft_s !== null) parts.push(`first text after ${seconds(ttft_s)}`);
  if (ttfa_s !== null) parts.push(`first sound after ${seconds(ttfa_s)}`);
  return `${parts.join("; ")}. The table below has the same.`;
}

// --- rows -----------------------------------------------------------------------------------

function row(kind, label, hint, ...content) {
  return el(
    "div",
    { class: `row ${kind}` },
    el("span", { class: "label", title: hint }, label),
    el("div", { class: "track" }, ...content),
  );
}

/** Where each part was: [kind, from, to, words]. What has no end lasts to the end of all. */
function phases(unit, total) {
  const last = unit.last_s ?? total;
  const first = unit.first_s ?? last;
  const input = unit.input_s ?? last;
  return [
    ["wait", unit.submitted_s, input, "waits for its input"],
    ["queue", input, Math.max(input, first), "is queued and begins"],
    ["run", first, Math.max(first, last), "runs"],
  ].filter(([, from, to]) => to > from);
}

function stageRow(timeline, stage, end) {
  const units = timeline.stages.filter((unit) => unit.stage === stage);
  const lanes = units.map((unit) =>
    el(
      "div",
      { class: "lane" },
      ...phases(unit, end).map(([kind, from, to, words]) => {
        const part = units.length > 1 ? `part ${unit.part + 1} ` : "";
        const title = `${name(stage)}: ${part}${words} for ${seconds(to - from)} (from ${seconds(from)})`;
        return span(el("span", { class: `bar ${kind}`, title }), from / end, to / end);
      }),
    ),
  );
  return row("stage", name(stage), count(units.length, "part"), ...lanes);
}

function edgeRows(timeline, stage, end) {
  const spans = timeline.edges.filter((edge) => edge.consumer === stage);
  const edges = [...new Set(spans.map((found) => found.edge))];
  return edges.map((edge) => {
    const own = spans.filter((found) => found.edge === edge);
    const hint = `${name(own[0].producer)} to ${name(stage)}`;
    return row("edge", name(edge), hint, ...own.flatMap((found) => crossing(found, end)));
  });
}

/** From the first chunk to the last. */
function crossing({ edge, first_s, last_s, chunks, bytes: size }, end) {
  const title =
    `${name(edge)}: first chunk at ${seconds(first_s)}, last at ${seconds(last_s)}; ` +
    `${count(chunks, "chunk")}, ${bytes(size)}`;
  return [
    span(el("span", { class: "flow", title }), first_s / end, last_s / end),
    span(el("span", { class: "first", title }), first_s / end, first_s / end),
  ];
}

/** When text and sound came out. */
function arrivals(timeline, end) {
  const ticks = (kind, list) =>
    list.map(([at]) => span(el("span", { class: `tick of-${kind}` }), at / end, at / end));
  const { text_s: text, audio_s: sound } = timeline;
  if (text.length + sound.length === 0) return null;
  const hint = "when pieces of text (upper) and of sound (lower) came out";
  return row("out", "answer", hint, ...ticks("text", text), ...ticks("sound", sound));
}

function milestones(timeline, end) {
  const found = [
    ["text", "first text", timeline.ttft_s],
    ["sound", "first sound", timeline.ttfa_s],
  ].filter(([, , at]) => at !== null && at <= end);
  const marks = found.map(([kind, words, at]) => {
    const side = at / end > 0.6 ? "before" : "after"; // so that it stays within the chart
    const label = el("span", { class: `flag-text ${side}` }, `${words} ${seconds(at)}`);
    return span(el("span", { class: `flag to-${kind}` }, label), at / end, at / end);
  });
  return marks.length ? row("milestones", "", "", ...marks) : null;
}

function axis(end) {
  const step = STEPS.find((candidate) => end / candidate <= TICKS) ?? end;
  const at = Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
  const shown = at.map((value) =>
    span(
      el("span", { class: "grid" }, el("span", { class: "grid-text" }, tick(value, step))),
      value / end,
      value / end,
    ),
  );
  return row("axis", "", "", ...shown);
}

function tick(value, step) {
  if (value === 0) return "0";
  if (step < 0.1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(step < 1 ? 1 : 0)} s`;
}

function legend() {
  const key = (kind, words) => el("li", {}, el("span", { class: `key ${kind}` }), words);
  return el(
    "ul",
    { class: "legend", "aria-hidden": "true" },
    key("wait", "waits for input"),
    key("queue", "queued, first step"),
    key("run", "runs"),
    key("first", "first chunk on an edge"),
  );
}

// --- the same in figures --------------------------------------------------------------------

function tables(timeline, stages) {
  const units = stages.flatMap((stage) => timeline.stages.filter((unit) => unit.stage === stage));
  const perStage = units.map((unit) => {
    const spent = new Map(phases(unit, timeline.total_s).map(([kind, a, b]) => [kind, b - a]));
    const of = (kind) => (spent.has(kind) ? seconds(spent.get(kind)) : "–");
    return [name(unit.stage), unit.part + 1, of("wait"), of("queue"), of("run"), unit.tokens];
  });
  const perEdge = timeline.edges.map((edge) => [
    name(edge.edge),
    edge.part + 1,
    seconds(edge.first_s),
    seconds(edge.last_s),
    edge.chunks,
    bytes(edge.bytes),
  ]);
  return el(
    "div",
    { class: "tables" },
    table(["Stage", "Part", "Waits", "Queued", "Runs", "Made"], perStage),
    perEdge.length
      ? table(["Edge", "Part", "First chunk", "Last chunk", "Chunks", "Size"], perEdge)
      : null,
    el(
      "p",
      { class: "note" },
      "Times are the server's, from the arrival of the request. A stage makes tokens, the last one samples of sound.",
    ),
  );
}

function table(heads, rows) {
  const cells = (tag, values) => values.map((value) => el(tag, {}, String(value)));
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...cells("th", heads))),
    el("tbody", {}, ...rows.map((values) => el("tr", {}, ...cells("td", values)))),
  );
}
