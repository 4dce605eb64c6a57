// The queues as lists, and what happened to their requests between two looks.

import { $, make, number } from "/ui/common.js";

const MOST_EVENTS = 100;

/** Show one queue. `pinned` is the id of the request whose blocks are marked. */
export function showQueue(name, lines, count, pinned) {
  $(`c-${name}`).textContent = number(count);
  const items = lines.map((line) => lineOf(line, line.id === pinned));
  if (count > lines.length) items.push(make("li", { className: "more", text: `and ${number(count - lines.length)} more` }));
  $(`q-${name}`).replaceChildren(...items);
}

function lineOf(line, pinned) {
  const meter = make("progress", { title: "tokens computed of those known" });
  meter.max = Math.max(1, line.num_tokens);
  meter.value = line.num_computed;
  const facts = [`${number(line.num_prompt)}+${number(line.num_tokens - line.num_prompt)} tok`];
  if (line.num_blocks) facts.push(`${number(line.num_blocks)} blk`);
  if (line.num_branches > 1) facts.push(`${line.num_branches} branches`);
  if (line.residency === "host") facts.push("on host");
  if (line.num_preemptions) facts.push(`preempted ${line.num_preemptions}x`);
  facts.push(`${line.age_s.toFixed(1)} s`);
  const button = make("button", { title: line.id }, make("code", { text: short(line.id) }), make("span", { text: facts.map((fact) => fact.replaceAll(" ", "\u00a0")).join(" · ") }), meter);
  button.type = "button";
  button.dataset.request = line.id;
  button.setAttribute("aria-pressed", String(pinned));
  return make("li", {}, button);
}

export const short = (id) => (id.length > 22 ? `${id.slice(0, 12)}…${id.slice(-8)}` : id);

/** Tells preemptions and returns by comparing a look with the one before. */
export class Chronicle {
  constructor() {
    this.before = null;
  }

  take(look) {
    const now = new Map();
    for (const queue of ["running", "preempted", "waiting"]) for (const line of look[queue]) now.set(line.id, { queue, ...line });
    if (this.before !== null) this.compare(this.before, now, look);
    this.before = { lines: now, totals: look.preemptions };
  }

  compare(before, now, look) {
    let told = 0;
    for (const [id, line] of now) {
      const old = before.lines.get(id);
      const times = line.num_preemptions - (old?.num_preemptions ?? 0);
      told += times;
      if (times > 0) {
        const again = old?.queue === "preempted" ? "came back and was preempted again" : "preempted";
        this.tell("preempted", `${short(id)} ${again}, ${where(line)}${times > 1 ? `, ${times} times` : ""}`, look.step);
      }
      if (times === 0 && old?.queue === "preempted" && line.queue === "running") this.tell("returned", `${short(id)} is back`, look.step);
    }
    const sum = (totals) => Object.values(totals).reduce((all, one) => all + one, 0);
    const others = sum(look.preemptions) - sum(before.totals) - told;
    if (others > 0) this.tell("preempted", `${others} preemptions of requests that are not listed`, look.step);
  }

  tell(className, text, step) {
    const list = $("events");
    list.prepend(make("li", { className }, make("small", { text: `step ${number(step)}` }), text));
    while (list.children.length > MOST_EVENTS) list.lastChild.remove();
  }
}

function where(line) {
  if (line.queue !== "preempted") return "already back";
  return line.residency === "host" ? "swapped to the host" : "dropped, to be recomputed";
}
